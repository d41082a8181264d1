// `deepinfer serve`: flags, signals and exit codes around Server.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/model_path.h"
#include "base/env.h"
#include "base/logging.h"
#include "server/server.h"

namespace deepinfer {
namespace {

constexpr char kCommand[] = "deepinfer serve";
constexpr int kWatchMs = 1000;

void AddServeFlags(CommandLine* line, ServerConfig* config) {
  line->Group("Server");
  line->Add("--host", &config->host, "address to listen on");
  line->Add("--port", &config->port, "port to listen on; 0: any free one");
  line->Add("--api-key", &config->api_keys, "key that requests must show; may be repeated");
  line->MarkSecret("api-key");
  line->AddList("--served-model-name", &config->served_model_names,
                "names that requests may give; the first is reported");
  line->Add("--chat-template", &config->chat_template_file,
            "Jinja file that replaces the checkpoint's chat template");
  line->AddSwitch("--trust-user-special-tokens", &config->trust_user_special_tokens,
                  "special tokens in a user's text count as such");
  line->AddSwitch("--strict-api", &config->strict_api, "refuse request fields that are not known");
  line->Add("--max-stored-responses", &config->max_stored_responses,
            "responses that can be read and continued; 0: none");
  line->AddBytes("--max-stored-response-bytes", &config->max_stored_response_bytes,
                 "memory of stored responses");
  line->Add("--stored-response-ttl-s", &config->stored_response_ttl_s,
            "seconds for which a response is kept");
  line->Add("--usage-style", &config->usage_style,
            "where streams of chats say what was used: openai or deepseek");
  line->Add("--batch-dir", &config->batch_dir,
            "directory of /v1/files and /v1/batches; empty: none of these routes");
  line->Add("--max-batches", &config->max_batches, "batches that are kept");
  line->Add("--max-batch-lines", &config->max_batch_lines, "requests of one batch");
  line->Add("--batch-window", &config->batch_window,
            "requests of a batch in flight; 0: half of --max-num-seqs");
  line->Add("--max-stored-files", &config->max_stored_files, "files that are kept; more get 429");
  line->AddBytes("--max-stored-file-bytes", &config->max_stored_file_bytes,
                 "all files together; more gets 429");
  line->Add("--stored-file-ttl-s", &config->stored_file_ttl_s, "seconds for which a file is kept");
  line->Add("--stream-interval", &config->stream_interval,
            "tokens of a stream's chunk; the first and the last come at once");
  line->Add("--request-timeout-ms", &config->request_timeout_ms,
            "longest life of a request; 0: no limit");
  line->Add("--watchdog-timeout-ms", &config->watchdog_timeout_ms,
            "work without a step for so long makes /health answer 503");
  line->Add("--shutdown-timeout-ms", &config->shutdown_timeout_ms,
            "after SIGTERM, time for running requests to end");
  line->Group("HTTP limits");
  line->Add("--http-threads", &config->http_threads, "I/O threads");
  line->Add("--max-connections", &config->max_connections, "open connections; more get 503");
  line->Add("--max-concurrent-requests", &config->max_concurrent_requests,
            "requests in flight; more get 503");
  line->AddBytes("--max-header-bytes", &config->max_header_bytes, "request header; more gets 431");
  line->AddBytes("--max-body-bytes", &config->max_body_bytes, "request body; more gets 413");
  line->AddBytes("--max-body-bytes-in-flight", &config->max_body_bytes_in_flight,
                 "bodies of all requests together; more gets 503");
  line->Add("--header-timeout-ms", &config->header_timeout_ms, "time for a request header");
  line->Add("--body-timeout-ms", &config->body_timeout_ms, "time for a request body");
  line->Add("--idle-timeout-ms", &config->idle_timeout_ms, "time between requests");
  line->Add("--write-timeout-ms", &config->write_timeout_ms,
            "a client that reads nothing for so long is cut");
  line->Add("--sse-ping-interval-ms", &config->sse_ping_interval_ms,
            "silence of a stream before a keep-alive comment");
  line->AddBytes("--max-stream-buffer-bytes", &config->max_stream_buffer_bytes,
                 "unread bytes of an answer before it is cut");
  line->Add("--allowed-origins", &config->allowed_origins, "CORS origin or *; may be repeated");
  line->Add("--prep-threads", &config->prep_threads,
            "threads that parse and tokenise; 0: by the number of cores");
  line->Add("--max-num-queued-preps", &config->max_num_queued_preps,
            "requests that may wait to be parsed; more get 503");
}

struct IntRange {
  const char* flag;
  int64_t value;
  int64_t min;
  int64_t max;
};

Status CheckServeFlags(const ServerConfig& c) {
  constexpr int64_t kDayMs = 86'400'000;
  constexpr int64_t kBig = int64_t{1} << 40;
  const IntRange ranges[] = {
      {"--port", c.port, 0, 65535},
      {"--stream-interval", c.stream_interval, 1, 1'000'000},
      {"--request-timeout-ms", c.request_timeout_ms, 0, 7 * kDayMs},
      {"--watchdog-timeout-ms", c.watchdog_timeout_ms, 1, kDayMs},
      {"--shutdown-timeout-ms", c.shutdown_timeout_ms, 0, kDayMs},
      {"--http-threads", c.http_threads, 1, 64},
      {"--max-connections", c.max_connections, 1, 1'000'000},
      {"--max-concurrent-requests", c.max_concurrent_requests, 1, 1'000'000},
      {"--max-header-bytes", c.max_header_bytes, 1024, 16 << 20},
      {"--max-body-bytes", c.max_body_bytes, 1024, kBig},
      {"--max-body-bytes-in-flight", c.max_body_bytes_in_flight, 1024, kBig},
      {"--header-timeout-ms", c.header_timeout_ms, 1, kDayMs},
      {"--body-timeout-ms", c.body_timeout_ms, 1, kDayMs},
      {"--idle-timeout-ms", c.idle_timeout_ms, 1, kDayMs},
      {"--write-timeout-ms", c.write_timeout_ms, 1, kDayMs},
      {"--sse-ping-interval-ms", c.sse_ping_interval_ms, 1, kDayMs},
      {"--max-stream-buffer-bytes", c.max_stream_buffer_bytes, 1024, kBig},
      {"--prep-threads", c.prep_threads, 0, 256},
      {"--max-num-queued-preps", c.max_num_queued_preps, 1, 1'000'000},
      {"--max-stored-responses", c.max_stored_responses, 0, 10'000'000},
      {"--max-stored-response-bytes", c.max_stored_response_bytes, 1024, kBig},
      {"--max-batches", c.max_batches, 1, 100'000},
      {"--max-batch-lines", c.max_batch_lines, 1, 100'000'000},
      {"--batch-window", c.batch_window, 0, 65'536},
      {"--max-stored-files", c.max_stored_files, 1, 1'000'000},
      {"--max-stored-file-bytes", c.max_stored_file_bytes, 1, int64_t{1} << 50},
      {"--stored-file-ttl-s", c.stored_file_ttl_s, 1, int64_t{3650} * 86'400},
      {"--stored-response-ttl-s", c.stored_response_ttl_s, 1, 365 * 86'400},
  };
  for (const IntRange& range : ranges) {
    if (range.value >= range.min && range.value <= range.max) continue;
    return Invalid(
        Format("{} is {}; it must be in {}..{}", range.flag, range.value, range.min, range.max));
  }
  if (c.usage_style != "openai" && c.usage_style != "deepseek") {
    return Invalid(Format("--usage-style is '{}'; it must be openai or deepseek", c.usage_style));
  }
  // The resolver would take it for every address of this machine.
  if (c.host.empty()) return Invalid("--host must not be empty; 0.0.0.0 or :: is every address");
  for (const std::string& key : c.api_keys) {
    if (key.empty()) return Invalid("--api-key must not be empty");
  }
  return {};
}

// "http://[::1]:8000"
std::string UrlOf(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? Format("http://{}:{}", host, port)
                                             : Format("http://[{}]:{}", host, port);
}

// Every connection needs a descriptor; the usual soft limit of 1,024 is far below what is allowed.
void RaiseFileLimit(int connections_max) {
  constexpr rlim_t kOwnFiles = 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(connections_max) + kOwnFiles;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
    LogWarning("{} open files are allowed, --max-connections {} needs {}: raise ulimit -n",
               limit.rlim_cur, connections_max, wanted);
  }
}

// Signals and the end of loading as descriptors, so that one poll waits for all of them.
class Events {
 public:
  Events() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    // Before any thread starts, so that every thread inherits the mask.
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signals_ = ::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  ~Events() {
    ::close(signals_);
    ::close(wake_);
  }
  bool ok() const { return signals_ >= 0 && wake_ >= 0; }

  void Wake() {
    const uint64_t one = 1;
    // Fails only when the counter is full, and then it wakes anyway.
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
  }

  // The number of a signal, 0 after Wake or when `timeout_ms` is over (-1: never).
  int Wait(int timeout_ms) {
    pollfd fds[2] = {{signals_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (::poll(fds, 2, timeout_ms) <= 0) return 0;
    uint64_t count = 0;
    if ((fds[1].revents & POLLIN) != 0) {
      [[maybe_unused]] const ssize_t drained = ::read(wake_, &count, sizeof(count));
    }
    signalfd_siginfo info{};
    if ((fds[0].revents & POLLIN) != 0 && ::read(signals_, &info, sizeof(info)) == sizeof(info)) {
      return static_cast<int>(info.ssi_signo);
    }
    return 0;
  }

 private:
  sigset_t set_;
  int signals_ = -1;
  int wake_ = -1;
};

// What the loading thread leaves for the main thread.
struct LoadOutcome {
  Status status;
  std::atomic<bool> done{false};
};

// Ends when loading failed (its exit code) or a signal came (nullopt).
std::optional<int> Serve(const Server& server, const LoadOutcome& outcome, Events* events) {
  bool announced = false;
  bool stuck = false;
  for (;;) {
    const int signal = events->Wait(outcome.done ? kWatchMs : -1);
    if (outcome.done && !outcome.status.ok()) return Fail(kCommand, outcome.status);
    if (signal != 0) {
      // Nothing runs before the model is there, and loading cannot be interrupted.
      if (!outcome.done) std::_Exit(kExitOk);
      LogInfo("signal {}: finishing running requests; a second signal ends at once", signal);
      return std::nullopt;
    }
    if (outcome.done && !announced) {
      announced = true;
      LogInfo("ready on port {}", server.port());
    }
    const bool now_stuck = server.stuck();
    if (now_stuck && !stuck) LogError("work waits but no step finishes; /health answers 503");
    if (!now_stuck && stuck) LogInfo("steps finish again");
    stuck = now_stuck;
  }
}

}  // namespace

int RunServe(int argc, char** argv) {
  ServerConfig config;
  CommandLine line(kCommand, "Serves a model over HTTP with the OpenAI routes.");
  line.Add("-m,--model,MODEL", &config.model,
           "model name, directory or file; empty: the default model");
  AddServeFlags(&line, &config);
  AddEngineFlags(&line, &config.engine);
  line.EnableConfigFile();
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  for (const std::string& warning : EnvWarnings(line.EnvironmentNames())) {
    LogWarning("{}", warning);
  }
  if (config.host.starts_with('[') && config.host.ends_with(']')) {
    config.host = config.host.substr(1, config.host.size() - 2);
  }
  if (Status status = CheckServeFlags(config); !status.ok()) return FailUsage(kCommand, status);
  if (Status status = Engine::CheckConfig(config.engine); !status.ok()) {
    return FailUsage(kCommand, status);
  }
  // "--served-model-name NAME MODEL" reads as two names; the default model would be a surprise.
  if (config.model.empty() && config.served_model_names.size() > 1) {
    return FailUsage(kCommand, Invalid(Format("--served-model-name took {} names and no model is "
                                              "given: put MODEL first, or use --model",
                                              config.served_model_names.size())));
  }
  Result<std::string> path = ResolveModelPath(config.model);
  if (!path.ok()) return Fail(kCommand, path.status());
  // A name of the hub stays what it was asked for by; a path is named after its last part.
  if (config.served_model_names.empty() && !config.model.empty() && *path != config.model) {
    config.served_model_names = {config.model};
  }
  config.model = *std::move(path);

  RaiseFileLimit(config.max_connections);
  Events events;
  if (!events.ok()) return Fail(kCommand, Internal("cannot create signal descriptors"));
  LoadOutcome outcome;
  Server server(config);
  Status started = server.Start([&](const Status& status) {
    outcome.status = status;
    outcome.done = true;
    events.Wake();
  });
  if (!started.ok()) return Fail(kCommand, started);
  LogInfo("listening on {}, loading {}", UrlOf(config.host, server.port()), config.model);
  if (const std::optional<int> code = Serve(server, outcome, &events)) return *code;

  LogInfo("shutting down: requests that run have {} ms to end; a second signal cuts them",
          config.shutdown_timeout_ms);
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    if (!server.Drain(config.shutdown_timeout_ms)) LogWarning("some requests were cut");
    drained = true;
    events.Wake();
  });
  while (!drained) {
    if (events.Wait(-1) != 0 && !drained) {
      LogWarning("second signal: ending now");
      std::_Exit(kExitOk);
    }
  }
  drain.join();
  LogInfo("bye");
  return kExitOk;
}

}  // namespace deepinfer
