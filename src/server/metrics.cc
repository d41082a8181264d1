#include "server/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/format.h"
#include "deepinfer/version.h"

namespace deepinfer {

namespace {

void AppendNumber(std::string* out, double value) {
  if (std::isnan(value)) {
    out->append("NaN");
    return;
  }
  if (std::isinf(value)) {
    out->append(value > 0 ? "+Inf" : "-Inf");
    return;
  }
  char text[32];
  const auto end = value == std::floor(value) && std::fabs(value) < 1e15
                       ? std::to_chars(text, text + sizeof(text), static_cast<int64_t>(value))
                       : std::to_chars(text, text + sizeof(text), value);
  out->append(text, end.ptr);
}

void AppendLabelValue(std::string* out, std::string_view value) {
  for (const char c : value) {
    if (c == '\\' || c == '"') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else {
      out->push_back(c);
    }
  }
}

double Micros(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

int64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long long total = 0;
  long long resident = 0;
  const int read = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

int64_t OpenFiles() {
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int64_t count = -3;  // ".", ".." and the directory itself
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

void RenderSpeculation(const EngineStats& stats, MetricsWriter* out) {
  out->Counter("vllm:spec_decode_num_drafts", "Rows that verified drafts.",
               static_cast<double>(stats.spec_drafts));
  out->Counter("vllm:spec_decode_num_draft_tokens", "Drafts verified.",
               static_cast<double>(stats.spec_draft_tokens));
  out->Counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.",
               static_cast<double>(stats.spec_accepted_tokens));
  out->Family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
              "Drafts accepted by their place in the proposal.");
  for (size_t i = 0; i < stats.spec_accepted_per_position.size(); ++i) {
    out->Sample("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                {{"position", Format("{}", i)}},
                static_cast<double>(stats.spec_accepted_per_position[i]));
  }
}

void RenderWeights(const WeightStats& stats, MetricsWriter* out) {
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  out->Gauge("deepinfer:weights_packed_bytes", "Weights packed now.", count(stats.packed_bytes));
  out->Gauge("deepinfer:weights_touched_bytes",
             "Packed size of weights that were ever used, and Engram rows read.",
             count(stats.touched_bytes));
  if (stats.cache_limit_bytes > 0) {
    out->Gauge("deepinfer:weight_cache_limit_bytes", "Limit of packed experts.",
               count(stats.cache_limit_bytes));
    out->Gauge("deepinfer:weight_cache_bytes", "Experts packed now.", count(stats.cache_bytes));
    out->Counter("deepinfer:weight_cache_lookups", "Expert matrices that products needed.",
                 count(stats.cache_lookups));
    out->Counter("deepinfer:weight_cache_hits", "Of the lookups, those packed already.",
                 count(stats.cache_hits));
    out->Counter("deepinfer:weight_cache_streams",
                 "Of the lookups, those packed for one product and forgotten.",
                 count(stats.cache_streams));
    out->Counter("deepinfer:weight_cache_loads", "Expert matrices packed.",
                 count(stats.cache_loads));
    out->Counter("deepinfer:weight_cache_evictions", "Expert matrices that made room.",
                 count(stats.cache_evictions));
    out->Counter("deepinfer:weight_cache_load_seconds", "Time that products waited for packing.",
                 count(stats.cache_load_us) * 1e-6);
  }
  if (stats.engram_tables == 0) return;
  out->Counter("deepinfer:engram_rows", "Engram rows needed, once per step.",
               count(stats.engram_rows));
  out->Counter("deepinfer:engram_hits", "Of these, in memory when they were needed.",
               count(stats.engram_hits));
  out->Gauge("deepinfer:engram_hit_rate", "Hits of all rows, 0 to 1.",
             stats.engram_rows == 0 ? 0 : count(stats.engram_hits) / count(stats.engram_rows));
  out->Counter("deepinfer:engram_reads", "Engram rows read from files.", count(stats.engram_reads));
  out->Counter("deepinfer:engram_read_bytes", "Bytes of these.", count(stats.engram_read_bytes));
  out->Counter("deepinfer:engram_read_errors", "Engram rows that could not be read.",
               count(stats.engram_errors));
  out->Counter("deepinfer:engram_stall_seconds", "Time that layers waited for Engram rows.",
               count(stats.engram_stall_us) * 1e-6);
}

void RenderEngine(const MetricsSnapshot& snapshot, MetricsWriter* out) {
  const EngineStats& stats = snapshot.engine;
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  out->Gauge("vllm:num_requests_running", "Sequences that hold a slot.", count(stats.running));
  out->Gauge("vllm:num_requests_waiting", "Requests that wait for their first step.",
             count(stats.waiting));
  out->Gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_usage);
  out->Gauge("vllm:gpu_cache_usage_perc", "Older name of kv_cache_usage_perc.", stats.kv_usage);
  out->Family("vllm:cache_config_info", "gauge", "Configuration of the KV cache, always 1.");
  const std::string block_size = Format("{}", snapshot.limits.block_size);
  const std::string num_blocks = Format("{}", snapshot.limits.num_kv_blocks);
  out->Sample("vllm:cache_config_info",
              {{"block_size", block_size},
               {"num_gpu_blocks", num_blocks},
               {"enable_prefix_caching", snapshot.prefix_caching ? "True" : "False"}},
              1);
  out->Counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
               count(stats.prefix_cache_queries));
  out->Counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.",
               count(stats.prefix_cache_hits));
  out->Counter("vllm:num_preemptions", "Sequences put back because KV blocks ran out.",
               count(stats.preemptions));
  out->Counter("vllm:prompt_tokens", "Prompt tokens processed.", count(stats.prompt_tokens));
  out->Family("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by origin.");
  out->Sample("vllm:prompt_tokens_by_source_total", {{"source", "local_compute"}},
              count(stats.prompt_tokens - stats.prefix_cache_hits));
  out->Sample("vllm:prompt_tokens_by_source_total", {{"source", "local_cache_hit"}},
              count(stats.prefix_cache_hits));
  out->Counter("vllm:prompt_tokens_cached", "Prompt tokens taken from the prefix cache.",
               count(stats.prefix_cache_hits));
  out->Counter("vllm:generation_tokens", "Tokens generated.", count(stats.generation_tokens));
  out->Family("vllm:request_success_total", "counter", "Finished samples by reason.");
  const std::pair<std::string_view, int64_t> reasons[] = {{"stop", stats.requests_stopped},
                                                          {"length", stats.requests_length},
                                                          {"abort", stats.requests_cancelled},
                                                          {"error", stats.requests_failed}};
  for (const auto& [reason, value] : reasons) {
    out->Sample("vllm:request_success_total", {{"finished_reason", reason}}, count(value));
  }
  out->Counter("vllm:corrupted_requests", "Samples that ended by NaN logits or a bad id.",
               count(stats.corrupted_requests));
  out->Family("vllm:admission_rejections_total", "counter", "Requests refused by a queue limit.");
  out->Sample("vllm:admission_rejections_total", {{"reason", "num_queued_reqs"}},
              count(stats.rejected_queue_full));
  out->Sample("vllm:admission_rejections_total", {{"reason", "num_queued_tokens"}},
              count(stats.rejected_queue_tokens));
  RenderSpeculation(stats, out);
  RenderWeights(stats.weights, out);
  for (const HistogramSnapshot& histogram : stats.histograms) {
    out->Histogram("vllm:" + histogram.name, histogram);
    if (histogram.name == "inter_token_latency_seconds") {
      HistogramSnapshot alias = histogram;
      alias.help = "Older name of inter_token_latency_seconds.";
      out->Histogram("vllm:time_per_output_token_seconds", alias);
    }
  }
  out->Counter("deepinfer:steps", "Steps the engine has finished.", count(stats.steps));
  out->Gauge("deepinfer:last_step_age_seconds",
             "Time since the last finished step, or since work arrived at an idle engine.",
             count(stats.last_step_age_us) * 1e-6);
  out->Gauge("deepinfer:waiting_tokens", "Prompt tokens of waiting requests.",
             count(stats.waiting_tokens));
  out->Family("deepinfer:kv_blocks", "gauge", "KV blocks by state.");
  out->Sample("deepinfer:kv_blocks", {{"state", "total"}}, count(stats.kv_blocks_total));
  out->Sample("deepinfer:kv_blocks", {{"state", "used"}}, count(stats.kv_blocks_used));
  out->Sample("deepinfer:kv_blocks", {{"state", "cached"}}, count(stats.kv_blocks_cached));
  out->Gauge("deepinfer:max_model_len", "Longest prompt and completion together.",
             count(snapshot.limits.max_model_len));
}

void RenderHttp(const MetricsSnapshot& snapshot, MetricsWriter* out) {
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  const HttpServerStats& http = snapshot.http;
  out->Gauge("deepinfer:http_connections", "Open connections.", count(http.connections));
  out->Gauge("deepinfer:http_requests_in_flight", "Requests without a complete answer.",
             count(http.requests_in_flight));
  out->Counter("deepinfer:http_requests", "Requests whose header was complete.",
               count(http.requests_total));
  out->Counter("deepinfer:http_connections_refused", "Connections over the limit.",
               count(http.connections_refused_total));
  out->Counter("deepinfer:http_slow_readers", "Answers cut because the client did not read.",
               count(http.slow_readers_total));
  out->Counter("deepinfer:http_clients_left", "Clients that left before their answer was complete.",
               count(http.peers_left_total));
  out->Family("deepinfer:http_responses_total", "counter",
              "Answers by status; 499: the client left. Open routes are not counted.");
  for (const auto& [status, value] : snapshot.counters->responses()) {
    const std::string code = Format("{}", status);
    out->Sample("deepinfer:http_responses_total", {{"code", code}}, count(value));
  }
  out->Counter("deepinfer:invalid_requests", "Requests with a wrong body.",
               count(snapshot.counters->invalid()));
  out->Counter("deepinfer:overload_rejections", "Requests refused before they were parsed.",
               count(snapshot.counters->overload()));
}

void RenderProcess(MetricsWriter* out) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  out->Counter("process_cpu_seconds", "User and system time of this process.",
               Micros(usage.ru_utime) + Micros(usage.ru_stime));
  out->Gauge("process_resident_memory_bytes", "Resident memory of this process.",
             static_cast<double>(ResidentBytes()));
  out->Gauge("process_open_fds", "Open file descriptors.", static_cast<double>(OpenFiles()));
}

}  // namespace

void ServerCounters::AddResponse(int status) {
  const size_t place = static_cast<size_t>(status - kStatusMin);
  if (place < responses_.size()) responses_[place].fetch_add(1, std::memory_order_relaxed);
}

std::vector<std::pair<int, int64_t>> ServerCounters::responses() const {
  std::vector<std::pair<int, int64_t>> out;
  for (size_t i = 0; i < responses_.size(); ++i) {
    const int64_t value = responses_[i].load(std::memory_order_relaxed);
    if (value > 0) out.emplace_back(static_cast<int>(i) + kStatusMin, value);
  }
  return out;
}

MetricsWriter::MetricsWriter(Labels common) {
  for (const auto& [name, value] : common) common_.emplace_back(name, value);
}

void MetricsWriter::Family(std::string_view name, std::string_view type, std::string_view help) {
  out_ += Format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsWriter::Counter(std::string_view name, std::string_view help, double value) {
  const std::string total = std::string(name) + "_total";
  Family(total, "counter", help);
  Sample(total, {}, value);
}

void MetricsWriter::Gauge(std::string_view name, std::string_view help, double value) {
  Family(name, "gauge", help);
  Sample(name, {}, value);
}

void MetricsWriter::Sample(std::string_view name, const Labels& labels, double value) {
  out_.append(name);
  AppendLabels(labels, {});
  out_.push_back(' ');
  AppendNumber(&out_, value);
  out_.push_back('\n');
}

void MetricsWriter::Histogram(std::string_view name, const HistogramSnapshot& histogram) {
  Family(name, "histogram", histogram.help);
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    below += histogram.counts[i];
    std::string bound = "+Inf";
    if (i < histogram.bounds.size()) {
      bound.clear();
      AppendNumber(&bound, histogram.bounds[i]);
      if (bound.find_first_of(".e") == std::string::npos) bound += ".0";
    }
    out_.append(name).append("_bucket");
    AppendLabels({}, bound);
    out_.push_back(' ');
    AppendNumber(&out_, static_cast<double>(below));
    out_.push_back('\n');
  }
  Sample(std::string(name) + "_sum", {}, histogram.sum);
  Sample(std::string(name) + "_count", {}, static_cast<double>(below));
}

void MetricsWriter::AppendLabels(const Labels& labels, std::string_view le) {
  bool first = true;
  const auto append = [&](std::string_view name, std::string_view value) {
    out_.push_back(first ? '{' : ',');
    first = false;
    out_.append(name).append("=\"");
    AppendLabelValue(&out_, value);
    out_.push_back('"');
  };
  for (const auto& [name, value] : common_) append(name, value);
  for (const auto& [name, value] : labels) append(name, value);
  if (!le.empty()) append("le", le);
  if (!first) out_.push_back('}');
}

std::string RenderMetrics(const MetricsSnapshot& snapshot) {
  MetricsWriter out({{"model_name", snapshot.model_name}, {"engine", "0"}});
  out.Family("deepinfer:build_info", "gauge", "Version of this build, always 1.");
  out.Sample("deepinfer:build_info", {{"version", kVersion}}, 1);
  out.Gauge("deepinfer:ready", "1 once the model is loaded.", snapshot.loaded ? 1 : 0);
  if (snapshot.loaded) RenderEngine(snapshot, &out);
  RenderHttp(snapshot, &out);
  RenderProcess(&out);
  return out.Take();
}

}  // namespace deepinfer
