#include "server/served_model.h"

#include <ctime>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "base/mapped_file.h"
#include "engine/create_engine.h"

namespace deepinfer {

namespace {

Result<ComputeDtype> DtypeOf(const std::string& dtype) {
  if (dtype == "auto") return ComputeDtype::kAuto;
  if (dtype == "float32") return ComputeDtype::kFloat32;
  return Invalid(Format("dtype is '{}'; it must be auto or float32", dtype)).WithParam("dtype");
}

// "-00001-of-00003" at the end of `stem`, which names one part of several.
bool EndsAsPart(std::string_view stem) {
  constexpr std::string_view kShape = "-00000-of-00000";
  if (stem.size() <= kShape.size()) return false;
  stem.remove_prefix(stem.size() - kShape.size());
  for (size_t i = 0; i < kShape.size(); ++i) {
    const bool digit = stem[i] >= '0' && stem[i] <= '9';
    if (kShape[i] == '0' ? !digit : stem[i] != kShape[i]) return false;
  }
  return true;
}

}  // namespace

std::string ModelNameOf(const std::string& path) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  const std::string extension = whole.extension().string();
  const bool file = extension == ".gguf" || extension == ".safetensors";
  std::string name = file ? whole.stem().string() : whole.filename().string();
  if (file && EndsAsPart(name)) name.resize(name.size() - std::string("-00000-of-00000").size());
  return name.empty() ? path : name;
}

std::unique_ptr<ResponseStore> MakeResponseStore(const ServerConfig& config) {
  if (config.max_stored_responses <= 0) return nullptr;
  static const RealClock kClock;
  return std::make_unique<ResponseStore>(
      ResponseStore::Limits{.responses_max = config.max_stored_responses,
                            .bytes_max = config.max_stored_response_bytes,
                            .ttl_s = config.stored_response_ttl_s},
      &kClock);
}

Result<std::unique_ptr<ServedModel>> LoadServedModel(const ServerConfig& config,
                                                     const LoadProgress& progress) {
  DI_TRY(Engine::CheckConfig(config.engine));
  LoadOptions load;
  load.path = config.model;
  load.backend.device = config.engine.device;
  load.backend.threads = config.engine.threads;
  load.backend.cpu_isa = config.engine.cpu_isa;
  load.backend.weight_cache_bytes =
      config.engine.weight_cache_bytes == 0 ? kWeightCacheAuto : config.engine.weight_cache_bytes;
  DI_ASSIGN(load.backend.row_io, ParseRowIo(config.engine.engram_io));
  DI_ASSIGN(load.backend.dtype, DtypeOf(config.engine.dtype));
  load.progress = progress;
  if (!config.chat_template_file.empty()) {
    DI_ASSIGN(const MappedFile file, MappedFile::Open(config.chat_template_file));
    load.chat_template.assign(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  }
  TaskPool tasks(1);
  load.tasks = &tasks;
  auto served = std::make_unique<ServedModel>();
  DI_ASSIGN(served->loaded, OpenModel(load));
  DI_ASSIGN(served->engine, CreateEngine(config.engine, served->loaded.get()));
  const GenerationDefaults& generation = served->loaded->generation;
  served->dialect = {.names = config.served_model_names,
                     .tokenizer = served->loaded->tokenizer.get(),
                     .chat_template = served->loaded->chat_template.get(),
                     .prompt_profile = served->loaded->prompt_profile,
                     .output = ProbeOutputStyle(served->loaded->tokenizer.get(),
                                                served->loaded->chat_template.get(),
                                                served->loaded->prompt_profile),
                     .defaults = {.temperature = generation.temperature,
                                  .top_p = generation.top_p,
                                  .min_p = generation.min_p,
                                  .repetition_penalty = generation.repetition_penalty,
                                  .top_k = generation.top_k,
                                  .max_tokens = generation.max_new_tokens,
                                  .top_logprobs_max = served->engine->limits().max_logprobs},
                     .vocab = served->engine->limits().vocab,
                     .max_model_len = served->engine->limits().max_model_len,
                     .embedding_size = served->engine->limits().embedding_size,
                     .created_s = static_cast<int64_t>(std::time(nullptr)),
                     .stream_interval = config.stream_interval,
                     .trust = config.trust_user_special_tokens ? SpecialTokenTrust::kEverywhere
                                                               : SpecialTokenTrust::kTemplate};
  served->responses = MakeResponseStore(config);
  served->dialect.responses = served->responses.get();
  if (config.usage_style == "deepseek") served->dialect.usage_style = UsageStyle::kDeepSeek;
  if (config.strict_api) {
    served->dialect.unknown_fields = DialectContext::UnknownFields::kRefuse;
  }
  if (served->dialect.names.empty()) {
    served->dialect.names = {ModelNameOf(config.model)};
    served->dialect.aliases = {config.model};
  }
  return served;
}

}  // namespace deepinfer
