// The text side of one sample: ids to text, stop strings, what may be shown already.
// Owned by a Sequence; advances only when a step is applied, on the engine thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "deepinfer/request.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace deepinfer {

class OutputStream {
 public:
  // `tokenizer` nullptr or sampling.detokenize false: ids only. Both must outlive this object.
  OutputStream(const Tokenizer* tokenizer, const SamplingParams& sampling);

  // Takes the next token of the sample. `ends_sample`: it is an EOS or stop id, whose text is not
  // shown unless include_stop_str_in_output. Appends text to delta->text. True when a stop string
  // ended the sample: then delta->stop_text is set.
  bool Push(TokenId id, bool ends_sample, OutputDelta* delta);
  // The sample ends without a stop string: appends what was held back. Again or after a match:
  // nothing.
  void Finish(OutputDelta* delta);

 private:
  bool TakeMatch(OutputDelta* delta);

  const SamplingParams& sampling_;
  std::optional<Detokenizer> detokenizer_;
  std::optional<StopMatcher> stop_matcher_;
  int num_tokens_ = 0;
  bool ended_ = false;
};

}  // namespace deepinfer
