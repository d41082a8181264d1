#include "text/detokenizer.h"

#include "text/decode_plan.h"
#include "text/unicode.h"

namespace deepinfer {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens,
                         bool spaces_between_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_(skip_special_tokens),
      spaces_between_special_(spaces_between_special_tokens),
      strip_left_(tokenizer->decode_plan().strip_start()) {}

void Detokenizer::Push(TokenId id, std::string* out) {
  const DecodePlan& plan = tokenizer_->decode_plan();
  const std::string& piece = tokenizer_->Piece(id);
  if (piece.empty()) return;
  const bool special = tokenizer_->IsSpecial(id);
  if (special && skip_special_) return;
  const bool raw = special && after_special_ && !spaces_between_special_;
  after_special_ = special;
  if (space_due_) PushBytes(" ", out);
  space_due_ = false;
  const bool first = at_start_;
  at_start_ = false;
  if (raw) {
    PushBytes(piece, out);
    return;
  }
  if (plan.joins_with_space() && !first) PushBytes(" ", out);
  if (first && plan.first_differs()) {
    PushBytes(plan.FirstBytes(piece), out);
    return;
  }
  std::string_view bytes = plan.Bytes(id);
  if (plan.EndsWord(piece) && bytes.ends_with(' ')) {
    bytes.remove_suffix(1);
    space_due_ = true;
  }
  PushBytes(bytes, out);
}

void Detokenizer::PushBytes(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!held_.empty()) {
    joined.swap(held_);
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t valid = ValidUtf8Prefix(bytes);
    Emit(bytes.substr(0, valid), out);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const Utf8Step step = NextUtf8Step(bytes);
    if (step.kind == Utf8Step::Kind::kIncomplete) {
      held_.assign(bytes);
      break;
    }
    Emit(kReplacementUtf8, out);
    bytes.remove_prefix(static_cast<size_t>(step.length));
  }
}

void Detokenizer::Finish(std::string* out) {
  if (!held_.empty()) Emit(kReplacementUtf8, out);
  held_.clear();
  stripped_held_ = 0;
  space_due_ = false;
}

// Complete characters pass here: the strip rules of the text's start and end.
void Detokenizer::Emit(std::string_view text, std::string* out) {
  const DecodePlan& plan = tokenizer_->decode_plan();
  const std::string& strip = plan.strip_character();
  while (strip_left_ > 0 && !text.empty()) {
    if (!text.starts_with(strip)) {
      strip_left_ = 0;
      break;
    }
    text.remove_prefix(strip.size());
    --strip_left_;
  }
  if (text.empty()) return;
  if (plan.strip_stop() == 0) {
    out->append(text);
    return;
  }
  std::string_view kept = text;
  int trailing = 0;
  while (kept.ends_with(strip)) {
    kept.remove_suffix(strip.size());
    ++trailing;
  }
  // Characters held from before are part of the end only if nothing else came after them.
  const int before = stripped_held_;
  int held = kept.empty() ? before + trailing : trailing;
  int released = kept.empty() ? 0 : before;
  if (held > plan.strip_stop()) {
    if (kept.empty()) {
      released = held - plan.strip_stop();
      held = plan.strip_stop();
    } else {
      kept = text.substr(
          0, kept.size() + static_cast<size_t>(held - plan.strip_stop()) * strip.size());
      held = plan.strip_stop();
    }
  }
  for (int i = 0; i < released; ++i) *out += strip;
  out->append(kept);
  stripped_held_ = held;
}

}  // namespace deepinfer
