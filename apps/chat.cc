// `deepinfer chat`: a conversation in the terminal.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/model_path.h"
#include "apps/request_builder.h"
#include "apps/sampling_flags.h"
#include "apps/stream_sink.h"
#include "base/mapped_file.h"
#include "deepinfer/llm.h"

namespace deepinfer {
namespace {

constexpr const char* kHelp =
    "/help            this list\n"
    "/clear           forget the conversation (the system message stays)\n"
    "/regen           answer the last message again\n"
    "/system TEXT     set the system message and start over\n"
    "/set NAME VALUE  change a sampling field: /set temperature 0.2\n"
    "/params          show the sampling fields\n"
    "/read FILE       send the text of a file\n"
    "/save FILE       write the conversation as JSON messages\n"
    "/exit            leave (also /quit, Ctrl-D)\n";
constexpr size_t kFileBytesMax = size_t{8} << 20;

// The first word and what follows the spaces behind it.
std::pair<std::string, std::string> SplitWord(const std::string& text) {
  const size_t end = text.find_first_of(" \t");
  if (end == std::string::npos) return {text, ""};
  const size_t rest = text.find_first_not_of(" \t", end);
  return {text.substr(0, end), rest == std::string::npos ? "" : text.substr(rest)};
}

class ChatSession {
 public:
  ChatSession(Engine* engine, const LoadedModel* model, Json params, int max_logprobs)
      : engine_(engine), model_(model), params_(std::move(params)), max_logprobs_(max_logprobs) {}

  void SetSystem(const std::string& text) {
    system_ = text;
    Clear();
  }
  void Clear() {
    messages_ = Json::Array();
    if (system_.empty()) return;
    Json message = Json::Object();
    message.Set("role", Json::String("system"));
    message.Set("content", Json::String(system_));
    messages_.Push(std::move(message));
  }
  // False when the session ends.
  bool HandleLine(const std::string& line);

 private:
  void Say(const std::string& text) {
    messages_.Push(UserMessage(text));
    Answer();
  }
  void Answer();
  void Regenerate();
  void SetParam(const std::string& words);
  void SendFile(const std::string& path);
  void Save(const std::string& path) const;
  void DropLast() {
    Json kept = Json::Array();
    for (size_t i = 0; i + 1 < messages_.items().size(); ++i) kept.Push(messages_.items()[i]);
    messages_ = std::move(kept);
  }

  Engine* engine_;
  const LoadedModel* model_;
  Json params_;
  const int max_logprobs_;
  std::string system_;
  Json messages_ = Json::Array();
};

void ChatSession::Answer() {
  const RequestBuilder builder(model_, params_, max_logprobs_);
  Result<Request> request = builder.FromMessages(messages_, Json());
  StreamSink sink;
  Result<RequestId> id = request.ok() ? engine_->Submit(std::move(request).value(), &sink)
                                      : Result<RequestId>(request.status());
  if (!id.ok()) {
    (void)Fail("chat", id.status());
    DropLast();  // the message cannot be answered: it would fail every later turn as well
    return;
  }
  const StreamResult result = sink.Print(stdout);
  engine_->Cancel(*id);  // over already, unless nobody reads the output
  sink.AwaitLast();
  std::fprintf(stderr, "[%s]\n", result.SpeedLine().c_str());
  if (!result.status.ok()) {
    (void)Fail("chat", result.status);
    DropLast();
    return;
  }
  Json answer = Json::Object();
  answer.Set("role", Json::String("assistant"));
  answer.Set("content", Json::String(result.text));
  messages_.Push(std::move(answer));
}

void ChatSession::Regenerate() {
  const std::vector<Json>& items = messages_.items();
  if (items.empty() || items.back().Find("role")->string() != "assistant") {
    std::printf("there is no answer yet\n");
    return;
  }
  DropLast();
  Answer();
}

void ChatSession::SetParam(const std::string& words) {
  const auto [name, text] = SplitWord(words);
  Result<Json> value = Json::Parse(text);
  if (!value.ok()) value = Json::String(text);
  Json changed = params_;
  changed.Set(name, *std::move(value));
  const RequestBuilder probe(model_, changed, max_logprobs_);
  const Result<Request> checked = probe.FromIds({0}, Json());
  if (!checked.ok()) {
    (void)Fail("/set", checked.status());
    return;
  }
  params_ = std::move(changed);
}

void ChatSession::SendFile(const std::string& path) {
  const Result<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) {
    (void)Fail("/read", file.status());
  } else if (file->size() > kFileBytesMax) {
    std::printf("%s has %zu bytes, allowed are %zu\n", path.c_str(), file->size(), kFileBytesMax);
  } else {
    Say(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->size()));
  }
}

void ChatSession::Save(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  const std::string text = messages_.Dump(2) + "\n";
  bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  std::printf(written ? "saved to %s\n" : "cannot write %s\n", path.c_str());
}

bool ChatSession::HandleLine(const std::string& line) {
  if (line.empty()) return true;
  if (line.front() != '/') {
    Say(line);
    return true;
  }
  const auto [command, rest] = SplitWord(line);
  if (command == "/exit" || command == "/quit") return false;
  if (command == "/set") {
    SetParam(rest);
  } else if (command == "/help") {
    std::printf("%s", kHelp);
  } else if (command == "/clear") {
    Clear();
  } else if (command == "/regen") {
    Regenerate();
  } else if (command == "/system") {
    SetSystem(rest);
  } else if (command == "/params") {
    std::printf("%s\n", params_.Dump(2).c_str());
  } else if (command == "/read") {
    SendFile(rest);
  } else if (command == "/save") {
    Save(rest);
  } else {
    std::printf("unknown command %s\n%s", command.c_str(), kHelp);
  }
  return true;
}

void RunTerminal(ChatSession* session) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) std::printf("/help lists the commands, Ctrl-D leaves\n");
  char* buffer = nullptr;
  size_t capacity = 0;
  while (true) {
    if (terminal) std::printf("\n> ");
    std::fflush(stdout);
    const ssize_t n = getline(&buffer, &capacity, stdin);
    if (n <= 0) break;
    std::string line(buffer, static_cast<size_t>(n));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    if (!session->HandleLine(line)) break;
  }
  std::free(buffer);
}

}  // namespace

int RunChat(int argc, char** argv) {
  std::string model;
  std::string system;
  LlmOptions options;
  SamplingFlags sampling;
  CommandLine line("deepinfer chat", "talk to a model in the terminal");
  line.Add("--model,-m,model", &model, "model name, directory or file; empty: the default model");
  line.Add("--system", &system, "system message");
  sampling.AddTo(&line);
  AddEngineFlags(&line, &options.engine);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  Result<Json> params = sampling.ToParams();
  if (!params.ok()) return FailUsage("chat", params.status());
  if (const Status status = Engine::CheckConfig(options.engine); !status.ok()) {
    return FailUsage("chat", status);
  }
  if (params->Find("max_tokens") == nullptr) params->Set("max_tokens", Json::Int(1024));
  Result<std::string> path = ResolveModelPath(model);
  if (!path.ok()) return Fail("chat", path.status());
  options.model = *path;
  Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
  if (!llm.ok()) return Fail("chat", llm.status());
  ChatSession session(&(*llm)->engine(), &(*llm)->model(), *std::move(params),
                      options.engine.max_logprobs);
  session.SetSystem(system);
  RunTerminal(&session);
  return kExitOk;
}

}  // namespace deepinfer
