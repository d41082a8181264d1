#include "engine/output_stream.h"

namespace deepinfer {

OutputStream::OutputStream(const Tokenizer* tokenizer, const SamplingParams& sampling)
    : sampling_(sampling) {
  if (tokenizer == nullptr || !sampling.detokenize) return;
  detokenizer_.emplace(tokenizer, sampling.skip_special_tokens,
                       sampling.spaces_between_special_tokens);
  if (sampling.stop.empty()) return;
  stop_matcher_.emplace(sampling.stop, sampling.include_stop_str_in_output
                                           ? StopMatcher::StopText::kInclude
                                           : StopMatcher::StopText::kExclude);
}

bool OutputStream::Push(TokenId id, bool ends_sample, OutputDelta* delta) {
  ++num_tokens_;
  if (!detokenizer_.has_value()) return false;
  if (ends_sample && !sampling_.include_stop_str_in_output) return false;
  if (!stop_matcher_.has_value()) {
    detokenizer_->Push(id, &delta->text);
    return false;
  }
  std::string text;
  detokenizer_->Push(id, &text);
  if (num_tokens_ < sampling_.min_tokens) {
    stop_matcher_->PushUnmatched(text, &delta->text);
    return false;
  }
  stop_matcher_->Push(text, &delta->text);
  return TakeMatch(delta);
}

bool OutputStream::TakeMatch(OutputDelta* delta) {
  if (!stop_matcher_->matched()) return false;
  ended_ = true;
  delta->stop_text = stop_matcher_->match();
  return true;
}

void OutputStream::Finish(OutputDelta* delta) {
  if (ended_ || !detokenizer_.has_value()) return;
  ended_ = true;
  if (!stop_matcher_.has_value()) {
    detokenizer_->Finish(&delta->text);
    return;
  }
  std::string text;
  detokenizer_->Finish(&text);
  stop_matcher_->Push(text, &delta->text);
  if (!TakeMatch(delta)) stop_matcher_->Finish(&delta->text);
}

}  // namespace deepinfer
