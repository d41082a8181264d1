// A backend that works like another but breaks ties among index scores as the reference did.
// Entries that every index head dislikes score exactly zero, so where the choice cuts among them is
// arbitrary; the reference left it to the order of its selection algorithm, which depends on how
// many entries the whole prompt has. The product takes the lower entry, whatever else is in the
// step. Every choice of the product is checked to be one of the best before it is exchanged.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace deepinfer {

std::unique_ptr<Backend> WithReferenceTies(std::unique_ptr<Backend> real);

}  // namespace deepinfer
