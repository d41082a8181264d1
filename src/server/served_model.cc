#include "server/served_model.h"

#include <ctime>
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

}  // namespace

Result<std::unique_ptr<ServedModel>> LoadServedModel(const ServerConfig& config,
                                                     const LoadProgress& progress) {
  DI_TRY(Engine::CheckConfig(config.engine));
  LoadOptions load;
  load.path = config.model;
  load.backend.device = config.engine.device;
  load.backend.threads = config.engine.threads;
  load.backend.cpu_isa = config.engine.cpu_isa;
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
                     .defaults = {.temperature = generation.temperature,
                                  .top_p = generation.top_p,
                                  .min_p = generation.min_p,
                                  .repetition_penalty = generation.repetition_penalty,
                                  .top_k = generation.top_k,
                                  .max_tokens = generation.max_new_tokens,
                                  .top_logprobs_max = served->engine->limits().max_logprobs},
                     .vocab = served->engine->limits().vocab,
                     .max_model_len = served->engine->limits().max_model_len,
                     .created_s = static_cast<int64_t>(std::time(nullptr)),
                     .trust = config.trust_user_special_tokens ? SpecialTokenTrust::kEverywhere
                                                               : SpecialTokenTrust::kTemplate};
  if (served->dialect.names.empty()) served->dialect.names = {config.model};
  return served;
}

}  // namespace deepinfer
