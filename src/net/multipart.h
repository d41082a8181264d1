// Reads a body of type multipart/form-data (RFC 7578). Pure functions, any thread; parts point into
// the body.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct MultipartPart {
  std::string name;
  std::string filename;  // empty: a plain field
  std::string_view body;
};

inline constexpr size_t kMultipartPartsMax = 32;
inline constexpr size_t kMultipartHeaderBytesMax = 8 << 10;  // of one part

// `content_type` is the value of the header, with its boundary. Errors say what is malformed.
Result<std::vector<MultipartPart>> ParseMultipart(std::string_view content_type,
                                                  std::string_view body);

}  // namespace deepinfer
