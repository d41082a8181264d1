// The formats of JSON Schema that bind a generator, as regular expressions over the whole string.
// Pure function, any thread.
#pragma once

#include <string_view>

namespace deepinfer {

// nullptr for a format that is unknown or no property of a string's characters.
const char* RegexOfFormat(std::string_view format);

}  // namespace deepinfer
