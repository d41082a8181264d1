#include "text/decode_plan.h"

#include "base/format.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

using Kind = DecoderStep::Kind;

constexpr size_t kStepsMax = 64;
constexpr int kStripMax = 1024;
constexpr size_t kArenaBytesMax = size_t{1} << 31;
constexpr std::string_view kDefaultWordSuffix = "</w>";

bool IsOneCharacter(std::string_view text) {
  if (text.empty()) return false;
  const Utf8Step step = NextUtf8Step(text);
  return step.kind == Utf8Step::Kind::kCharacter && static_cast<size_t>(step.length) == text.size();
}

void ReplaceAll(std::string_view from, std::string_view to, std::string* text) {
  size_t at = text->find(from);
  if (from.empty() || at == std::string::npos) return;
  std::string out;
  size_t done = 0;
  for (; at != std::string::npos; at = text->find(from, done)) {
    out.append(*text, done, at - done).append(to);
    done = at + from.size();
  }
  out.append(*text, done, std::string::npos);
  *text = std::move(out);
}

void StripToken(const DecoderStep& step, std::string* text) {
  size_t begin = 0;
  size_t end = text->size();
  const std::string_view view = *text;
  for (int i = 0; i < step.start && view.substr(begin).starts_with(step.content); ++i) {
    begin += step.content.size();
  }
  for (int i = 0; i < step.stop && end >= begin + step.content.size() &&
                  view.substr(0, end).ends_with(step.content);
       ++i) {
    end -= step.content.size();
  }
  *text = text->substr(begin, end - begin);
}

}  // namespace

Status DecodePlan::AddStep(const DecoderStep& step, bool* fused) {
  switch (step.kind) {
    case Kind::kFuse:
      *fused = true;
      return {};
    case Kind::kByteLevel:
      steps_.push_back(step);
      *fused = true;
      return {};
    case Kind::kByteFallback:
      if (!*fused) steps_.push_back(step);
      return {};
    case Kind::kReplace:
      if (*fused && !IsOneCharacter(step.pattern)) {
        return Invalid(Format("decoder Replace {:?} after Fuse: only one character can be replaced",
                              step.pattern));
      }
      steps_.push_back(step);
      return {};
    case Kind::kStrip:
      if (step.start < 0 || step.stop < 0 || step.start > kStripMax || step.stop > kStripMax) {
        return Invalid(Format("decoder Strip counts {} and {} are outside [0, {}]", step.start,
                              step.stop, kStripMax));
      }
      if (!IsOneCharacter(step.content)) {
        return Invalid(Format("decoder Strip content {:?} is not one character", step.content));
      }
      if (!*fused) {
        steps_.push_back(step);
        return {};
      }
      if (!strip_character_.empty()) return Invalid("two Strip decoders after Fuse");
      strip_character_ = step.content;
      strip_start_ = step.start;
      strip_stop_ = step.stop;
      return {};
    case Kind::kMetaspace:
      if (!IsOneCharacter(step.replacement)) {
        return Invalid(
            Format("decoder Metaspace replacement {:?} is not one character", step.replacement));
      }
      if (*fused) return Invalid("a Metaspace decoder after Fuse is not supported");
      first_differs_ = first_differs_ || step.strip_leading;
      steps_.push_back(step);
      return {};
    case Kind::kBpe:
      if (*fused) return Invalid("a BPE decoder after Fuse is not supported");
      word_suffix_ = !step.pattern.empty()   ? step.pattern
                     : !step.content.empty() ? step.content
                                             : std::string(kDefaultWordSuffix);
      steps_.push_back(step);
      return {};
  }
  return {};
}

std::string DecodePlan::Transform(std::string_view piece, Place place) const {
  std::string text(piece);
  for (const DecoderStep& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel: {
        std::string bytes;
        if (AppendBytesOfLevel(text, &bytes)) text = std::move(bytes);
        break;
      }
      case Kind::kByteFallback:
        // Later steps see text; a lone byte is none.
        if (const int byte = FallbackByte(text); byte >= 0) {
          return std::string(1, static_cast<char>(byte));
        }
        break;
      case Kind::kReplace:
        ReplaceAll(step.pattern, step.content, &text);
        break;
      case Kind::kStrip:
        StripToken(step, &text);
        break;
      case Kind::kMetaspace:
        ReplaceAll(step.replacement, step.strip_leading && place == Place::kFirst ? "" : " ",
                   &text);
        break;
      case Kind::kBpe:
        ReplaceAll(word_suffix_, " ", &text);
        break;
      case Kind::kFuse:
        break;
    }
  }
  return text;
}

Result<DecodePlan> DecodePlan::Compile(const TokenizerSpec& spec,
                                       const std::vector<std::string>& vocab) {
  if (spec.decoders.size() > kStepsMax) {
    return Invalid(Format("the decoder has {} steps, at most {} are allowed", spec.decoders.size(),
                          kStepsMax));
  }
  DecodePlan plan;
  bool fused = false;
  for (const DecoderStep& step : spec.decoders) DI_TRY(plan.AddStep(step, &fused));
  plan.joins_with_space_ = spec.decoders.empty();
  const bool only_byte_level =
      plan.steps_.size() == 1 && plan.steps_.front().kind == Kind::kByteLevel;
  size_t bytes = 0;
  for (const std::string& piece : vocab) bytes += piece.size();
  plan.arena_.reserve(bytes);
  plan.offsets_.reserve(vocab.size() + 1);
  plan.offsets_.push_back(0);
  for (const std::string& piece : vocab) {
    if (only_byte_level) {
      if (!AppendBytesOfLevel(piece, &plan.arena_)) plan.arena_ += piece;
    } else {
      plan.arena_ += plan.Transform(piece, Place::kInside);
    }
    if (plan.arena_.size() > kArenaBytesMax) {
      return Invalid(Format("decoded vocabulary exceeds {} bytes", kArenaBytesMax));
    }
    plan.offsets_.push_back(static_cast<uint32_t>(plan.arena_.size()));
  }
  plan.arena_.shrink_to_fit();
  return plan;
}

std::string_view DecodePlan::Bytes(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) + 1 >= offsets_.size()) return {};
  const uint32_t begin = offsets_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(begin, offsets_[static_cast<size_t>(id) + 1] - begin);
}

}  // namespace deepinfer
