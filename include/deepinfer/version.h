// The version of this build, as `deepinfer --version` and GET /version print it.
#pragma once

namespace deepinfer {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace deepinfer
