#include "engine/output_stream.h"

#include <algorithm>
#include <string_view>

namespace deepinfer {
namespace {

// Length of the longest proper prefix of `stop` that ends `text`.
size_t OpenPrefix(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

OutputStream::OutputStream(const Tokenizer* tokenizer, const SamplingParams& sampling)
    : sampling_(sampling) {
  if (tokenizer != nullptr && sampling.detokenize) {
    detokenizer_.emplace(tokenizer, sampling.skip_special_tokens,
                         sampling.spaces_between_special_tokens);
  }
}

bool OutputStream::Show(const std::string& text, OutputDelta* delta) {
  // Stop strings count from the token after min_tokens on.
  if (sampling_.stop.empty() || num_tokens_ <= sampling_.min_tokens) {
    delta->text += text;
    return false;
  }
  held_ += text;
  size_t begin = std::string::npos;
  const std::string* match = nullptr;
  for (const std::string& stop : sampling_.stop) {
    if (const size_t at = held_.find(stop); at < begin) {
      begin = at;
      match = &stop;
    }
  }
  if (match != nullptr) {
    stopped_ = true;
    delta->stop_text = *match;
    delta->text +=
        held_.substr(0, begin + (sampling_.include_stop_str_in_output ? match->size() : 0));
    held_.clear();
    return true;
  }
  size_t open = 0;
  for (const std::string& stop : sampling_.stop) open = std::max(open, OpenPrefix(held_, stop));
  delta->text.append(held_, 0, held_.size() - open);
  held_.erase(0, held_.size() - open);
  return false;
}

bool OutputStream::Push(TokenId id, bool ends_sample, OutputDelta* delta) {
  ++num_tokens_;
  if (!detokenizer_.has_value()) return false;
  if (ends_sample && !sampling_.include_stop_str_in_output) return false;
  std::string text;
  detokenizer_->Push(id, &text);
  return Show(text, delta);
}

void OutputStream::Finish(OutputDelta* delta) {
  if (stopped_ || !detokenizer_.has_value()) return;
  stopped_ = true;
  std::string text;
  detokenizer_->Finish(&text);
  if (Show(text, delta)) return;
  delta->text += held_;
  held_.clear();
}

}  // namespace deepinfer
