// What the routes serve: an engine with the text side of its model. Built on the loading thread,
// then constant; the engine goes before the model it uses.
#pragma once

#include <memory>

#include "api/dialect.h"
#include "api/response_store.h"
#include "deepinfer/engine.h"
#include "deepinfer/server_config.h"
#include "models/loaded_model.h"

namespace deepinfer {

struct ServedModel {
  std::unique_ptr<LoadedModel> loaded;       // nullptr in tests, whose engine is scripted
  std::unique_ptr<ResponseStore> responses;  // nullptr: none are kept; the engine's calls fill it
  std::unique_ptr<Engine> engine;
  DialectContext dialect;
};

// What a checkpoint is called after its path: a directory's name, or a file's without ".gguf" and
// without the number of a split part.
std::string ModelNameOf(const std::string& path);

// The store that `config` asks for, or nullptr.
std::unique_ptr<ResponseStore> MakeResponseStore(const ServerConfig& config);

// `progress` may be empty. Errors name the file or the setting at fault.
Result<std::unique_ptr<ServedModel>> LoadServedModel(const ServerConfig& config,
                                                     const LoadProgress& progress = {});

}  // namespace deepinfer
