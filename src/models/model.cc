#include "models/model.h"

#include "base/check.h"

namespace deepinfer {

void Model::DraftBlock(const DraftInput& /*input*/, const DraftOutput& /*output*/) {
  DI_CHECK(false, "{} has no draft layers", info().architecture);
}

}  // namespace deepinfer
