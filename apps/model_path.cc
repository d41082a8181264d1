#include "apps/model_path.h"

#include "models/hub.h"

namespace deepinfer {

Result<std::string> ResolveModelPath(const std::string& model) {
  return ResolveModel(HubOptionsFromEnv(), model);
}

}  // namespace deepinfer
