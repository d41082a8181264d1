// `deepinfer model list|pull|info|quantize|random|engram`: the checkpoints on disk.
#include <cstdio>
#include <memory>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/model_path.h"
#include "apps/progress.h"
#include "base/format.h"
#include "base/json.h"
#include "base/topology.h"
#include "models/checkpoint.h"
#include "models/engram_sidecar.h"
#include "models/hub.h"
#include "models/quantize_model.h"
#include "models/random_deepseek.h"
#include "models/random_model.h"

namespace deepinfer {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr int kThreadsMax = 1024;

// Draws a byte count; a new file or tensor may begin with a new total.
struct ByteProgress {
  std::unique_ptr<Progress> line;
  uint64_t total = 0;

  void Update(uint64_t done, uint64_t new_total) {
    if (line == nullptr || new_total != total) {
      line.reset();
      line = std::make_unique<Progress>("MiB", static_cast<int64_t>(new_total >> 20));
      total = new_total;
    }
    line->Update(static_cast<int64_t>(done >> 20), 0);
  }
};

void ReportPull(void* context, const std::string& /*file*/, uint64_t done, uint64_t total) {
  static_cast<ByteProgress*>(context)->Update(done, total);
}

void ReportQuantize(void* context, uint64_t done, uint64_t total, const std::string& /*tensor*/) {
  static_cast<ByteProgress*>(context)->Update(done, total);
}

int RunList(int argc, char** argv) {
  bool as_json = false;
  CommandLine line("deepinfer model list", "the models in the cache");
  line.AddSwitch("--json", &as_json, "print JSON");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  const HubOptions options = HubOptionsFromEnv();
  const Result<std::vector<CachedModel>> models = ListModels(options.directory);
  if (!models.ok()) return Fail("model list", models.status());
  Json list = Json::Array();
  for (const CachedModel& model : *models) {
    Json& entry = list.Push(Json::Object());
    entry.Set("name", Json::String(model.name));
    entry.Set("bytes", Json::Int(static_cast<int64_t>(model.bytes)));
    entry.Set("path", Json::String(model.path));
    entry.Set("source", Json::String(model.source));
    if (!as_json) {
      std::printf("%-40s %9.1f MiB  %s\n", model.name.c_str(),
                  static_cast<double>(model.bytes) / kMiB, model.path.c_str());
    }
  }
  if (as_json) std::printf("%s\n", list.Dump(2).c_str());
  if (!as_json && models->empty()) {
    std::printf("no models in %s yet: deepinfer model pull\n", options.directory.c_str());
  }
  return kExitOk;
}

int RunPull(int argc, char** argv) {
  std::string source;
  CommandLine line("deepinfer model pull", "fetch a model into the cache");
  line.Add("source", &source,
           "org/repo[@revision][:file], URL of a .gguf file; empty: the default model");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  ByteProgress bytes;
  const Result<CachedModel> model =
      PullModel(HubOptionsFromEnv(), source, {.report = ReportPull, .context = &bytes});
  bytes.line.reset();
  if (!model.ok()) return Fail("model pull", model.status());
  std::printf("%s  %.1f MiB  %s\n", model->name.c_str(), static_cast<double>(model->bytes) / kMiB,
              model->path.c_str());
  return kExitOk;
}

Json DescribeTensors(const Checkpoint& checkpoint) {
  Json list = Json::Array();
  for (const TensorView& view : checkpoint.file().tensors()) {
    Json& entry = list.Push(Json::Object());
    entry.Set("name", Json::String(view.name));
    entry.Set("dtype", Json::String(std::string(Info(view.dtype).name)));
    Json& shape = entry.Set("shape", Json::Array());
    for (int64_t dim : view.shape) shape.Push(Json::Int(dim));
  }
  return list;
}

int RunInfo(int argc, char** argv) {
  std::string model;
  bool tensors = false;
  CommandLine line("deepinfer model info", "what a checkpoint holds");
  line.Add("--model,-m,model", &model, "model name, directory or file; empty: the default model");
  line.AddSwitch("--tensors", &tensors, "list every tensor");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  const Result<std::string> path = ResolveModelPath(model);
  if (!path.ok()) return Fail("model info", path.status());
  const Result<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(*path);
  if (!opened.ok()) return Fail("model info", opened.status());
  const Checkpoint& checkpoint = **opened;
  const ModelConfig& config = checkpoint.config();
  Json out = Json::Object();
  out.Set("path", Json::String(*path));
  out.Set("name", Json::String(config.name));
  out.Set("architecture", Json::String(config.architecture));
  out.Set("format",
          Json::String(checkpoint.format() == CheckpointFormat::kGguf ? "GGUF" : "safetensors"));
  out.Set("dtype", Json::String(std::string(Info(checkpoint.main_dtype()).name)));
  out.Set("parameters", Json::Int(checkpoint.parameters()));
  out.Set("file_bytes", Json::Int(static_cast<int64_t>(checkpoint.file().file_bytes())));
  const std::pair<const char*, int> numbers[] = {
      {"layers", config.layers},
      {"hidden", config.hidden},
      {"intermediate", config.intermediate},
      {"heads", config.heads},
      {"kv_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"vocab", config.vocab},
      {"context", config.context_max},
      {"experts", config.moe.experts},
      {"experts_per_token", config.moe.top_k},
  };
  for (const auto& [key, value] : numbers) out.Set(key, Json::Int(value));
  out.Set("tokenizer", Json::Bool(checkpoint.tokenizer().has_value()));
  out.Set("chat_template", Json::Bool(!checkpoint.chat_template().empty()));
  if (tensors) out.Set("tensors", DescribeTensors(checkpoint));
  std::printf("%s\n", out.Dump(2).c_str());
  return kExitOk;
}

int PrintSummary(const char* command, const Result<QuantizeSummary>& summary,
                 const std::string& output) {
  if (!summary.ok()) return Fail(command, summary.status());
  std::printf("%s: %d tensors, %.1f MiB\n", output.c_str(), summary->tensors,
              static_cast<double>(summary->bytes_out) / kMiB);
  return kExitOk;
}

int RunQuantize(int argc, char** argv) {
  std::string model, output, type = "Q4_K_M";
  bool requantize = false;
  int threads = 0;
  CommandLine line("deepinfer model quantize", "write a checkpoint as GGUF of another type");
  line.Add("--model,-m,model", &model, "model name, directory or file");
  line.Add("--output,-o,output", &output, "GGUF file to write");
  line.Add("--type,-t,type", &type, "Q8_0, Q4_0, Q4_K_M, BF16, ...");
  line.AddSwitch("--allow-requantize", &requantize,
                 "accept a source that is quantised already (loses accuracy twice)");
  line.Add("--threads", &threads, "0: one per available core");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (output.empty()) return FailUsage("model quantize", Invalid("--output is missing"));
  if (threads < 0 || threads > kThreadsMax) {
    return FailUsage("model quantize",
                     Invalid(Format("--threads is {}; it must be in 0..{}", threads, kThreadsMax)));
  }
  const Result<std::string> path = ResolveModelPath(model);
  if (!path.ok()) return Fail("model quantize", path.status());
  const Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(*path);
  if (!checkpoint.ok()) return Fail("model quantize", checkpoint.status());
  ComputePool pool(threads > 0 ? threads : ComputeThreads(ReadTopology()));
  ByteProgress bytes;
  QuantizeOptions options;
  options.type = type;
  options.requantize = requantize ? Requantize::kAllow : Requantize::kRefuse;
  options.pool = &pool;
  options.progress = {.report = ReportQuantize, .context = &bytes};
  const Result<QuantizeSummary> summary = QuantizeCheckpoint(**checkpoint, output, options);
  bytes.line.reset();
  return PrintSummary("model quantize", summary, output);
}

struct RandomFlags {
  std::string output, arch, size = "4G";
  RandomModelOptions gguf;
  RandomDeepseekOptions deepseek;
  int64_t seed = 1;
};

Result<QuantizeSummary> WriteRandom(RandomFlags* flags, ByteProgress* bytes) {
  const QuantizeProgress progress = {.report = ReportQuantize, .context = bytes};
  if (flags->arch.empty()) {
    flags->gguf.seed = static_cast<uint64_t>(flags->seed);
    flags->gguf.progress = progress;
    return WriteRandomModel(flags->output, flags->gguf);
  }
  DI_ASSIGN(flags->deepseek.bytes, ParseByteSize(flags->size));
  flags->deepseek.seed = static_cast<uint64_t>(flags->seed);
  flags->deepseek.progress = progress;
  return WriteRandomDeepseek(flags->output, flags->deepseek);
}

Status CheckRandom(const RandomFlags& flags, const CommandLine& line) {
  if (flags.output.empty()) return Invalid("--output is missing");
  if (!flags.arch.empty() && flags.arch != "deepseek-v4.1") {
    return Invalid(Format("--arch is '{}'; it must be deepseek-v4.1", flags.arch));
  }
  const std::vector<const char*> others =
      flags.arch.empty() ? std::vector<const char*>{"size", "expert-share", "engram-share"}
                         : std::vector<const char*>{"preset", "type"};
  for (const char* name : others) {
    if (!line.Given(name)) continue;
    return Invalid(Format("--{} belongs to {}", name,
                          flags.arch.empty() ? "--arch deepseek-v4.1" : "models without --arch"));
  }
  return {};
}

int RunRandom(int argc, char** argv) {
  RandomFlags flags;
  CommandLine line("deepinfer model random",
                   "write a shape-true checkpoint of random weights, for speed tests only");
  line.Add("--output,-o,output", &flags.output, "GGUF file to write; with --arch a directory");
  line.Add("--preset", &flags.gguf.preset, "one of " + RandomModelPresets());
  line.Add("--type,-t", &flags.gguf.type, "Q8_0, Q4_1, Q4_K_M, BF16, ...");
  line.Add("--arch", &flags.arch,
           "deepseek-v4.1: the released format, scaled to --size, instead of a preset");
  line.Add("--size", &flags.size, "with --arch: bytes of all tensors, as in 300M or 4G");
  line.Add("--expert-share", &flags.deepseek.expert_share,
           "with --arch: part of the bytes that routed experts take");
  line.Add("--engram-share", &flags.deepseek.engram_share,
           "with --arch: part of the bytes that Engram rows take");
  line.Add("--seed", &flags.seed, "of the weights");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (const Status status = CheckRandom(flags, line); !status.ok()) {
    return FailUsage("model random", status);
  }
  ByteProgress bytes;
  const Result<QuantizeSummary> summary = WriteRandom(&flags, &bytes);
  bytes.line.reset();
  return PrintSummary("model random", summary, flags.output);
}

int RunEngram(int argc, char** argv) {
  std::string model;
  CommandLine line("deepinfer model engram",
                   "write the engram.json of a DeepSeek V4.1 checkpoint from its tokenizer");
  line.Add("--model,-m,model", &model, "directory of the checkpoint");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  const Result<std::string> path = ResolveModelPath(model);
  if (!path.ok()) return Fail("model engram", path.status());
  const Result<std::string> written = WriteEngramSidecar(*path);
  if (!written.ok()) return Fail("model engram", written.status());
  std::printf("%s\n", written->c_str());
  return kExitOk;
}

constexpr Command kModelCommands[] = {
    {"list", "the models in the cache", RunList},
    {"pull", "fetch a model into the cache", RunPull},
    {"info", "what a checkpoint holds", RunInfo},
    {"quantize", "write a checkpoint as GGUF of another type", RunQuantize},
    {"random", "write random weights of a known shape, for speed tests", RunRandom},
    {"engram", "write the token map that Engram memory needs", RunEngram},
};

}  // namespace

int RunModel(int argc, char** argv) {
  return Dispatch("deepinfer model", kModelCommands, argc, argv);
}

}  // namespace deepinfer
