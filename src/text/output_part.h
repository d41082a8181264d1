// What generated text is made of. Plain values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

struct OutputPart {
  enum class Kind {
    kReasoning,
    kText,
    kCallName,       // a call begins; `text` is the whole name
    kCallArguments,  // more of its arguments, which are JSON text in the end
    kCallEnd,        // the call is complete
  } kind = Kind::kText;
  std::string text;
  bool operator==(const OutputPart&) const = default;
};

// Text that continues the last part becomes a part of it.
void AppendPart(OutputPart::Kind kind, std::string_view text, std::vector<OutputPart>* parts);
void AppendParts(std::vector<OutputPart>&& more, std::vector<OutputPart>* parts);

}  // namespace deepinfer
