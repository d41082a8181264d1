// Everything that serving one checkpoint needs, opened in one call: device, weights, tokenizer and
// chat template. Built on any thread; afterwards model and backend belong to the runner thread,
// the tokenizer and the template may be used from any thread. The engine must be gone before it.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "base/task_pool.h"
#include "models/model.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "tensor/tensor_file.h"
#include "text/chat_template.h"
#include "text/prompt_profile.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct LoadOptions {
  std::string path;  // a directory or file
  BackendOptions backend;
  std::string chat_template;  // Jinja source that replaces the checkpoint's; empty: keep it
  TaskPool* tasks = nullptr;  // builds the tokenizer beside the weights when given
  LoadProgress progress;      // may be empty
};

struct LoadedModel {
  std::shared_ptr<const TensorFile> file;  // shared with models; experts may be packed from it late
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;                 // uses backend
  std::unique_ptr<Tokenizer> tokenizer;         // nullptr: the checkpoint has none, ids only
  std::unique_ptr<ChatTemplate> chat_template;  // nullptr: none
  // The prompt format of a family whose checkpoints have no template; nullptr: none.
  const PromptProfile* prompt_profile = nullptr;
  GenerationDefaults generation;
};

Result<std::unique_ptr<LoadedModel>> OpenModel(const LoadOptions& options);

}  // namespace deepinfer
