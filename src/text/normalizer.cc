#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/format.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

using Kind = NormalizerStep::Kind;

constexpr size_t kStepsMax = 64;
constexpr size_t kGrowthMax = size_t{256} << 20;  // where a hostile list of replacements ends

// Writes the result of one step, with the source of each byte when the input has one.
class Writer {
 public:
  Writer(const NormalizedText& in, NormalizedText* out)
      : in_(in), out_(out), track_(!in.source.empty()) {
    out_->text.clear();
    out_->source.clear();
  }
  // Copies bytes [begin, end) of the input.
  void Copy(size_t begin, size_t end) {
    out_->text.append(in_.text, begin, end - begin);
    if (!track_) return;
    out_->source.insert(out_->source.end(), in_.source.begin() + static_cast<ptrdiff_t>(begin),
                        in_.source.begin() + static_cast<ptrdiff_t>(end));
  }
  // Writes text made from the input byte at `at`.
  void Write(std::string_view text, size_t at) {
    out_->text += text;
    if (track_) out_->source.insert(out_->source.end(), text.size(), in_.source[at]);
  }
  ~Writer() {
    if (track_) out_->source.push_back(in_.source.back());
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

 private:
  const NormalizedText& in_;
  NormalizedText* out_;
  bool track_;
};

utf8proc_option_t OptionsOf(Kind kind) {
  int options = UTF8PROC_STABLE;
  if (kind == Kind::kNfc || kind == Kind::kNfkc) options |= UTF8PROC_COMPOSE;
  if (kind == Kind::kNfd || kind == Kind::kNfkd) options |= UTF8PROC_DECOMPOSE;
  if (kind == Kind::kNfkc || kind == Kind::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

int CombiningClass(utf8proc_int32_t cp) { return utf8proc_get_property(cp)->combining_class; }

// Orders each run of marks by combining class. utf8proc's own ordering is quadratic in the run.
void OrderMarks(std::vector<utf8proc_int32_t>* cps) {
  for (size_t begin = 0; begin < cps->size();) {
    if (CombiningClass((*cps)[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < cps->size() && CombiningClass((*cps)[end]) != 0) ++end;
    std::stable_sort(cps->begin() + static_cast<ptrdiff_t>(begin),
                     cps->begin() + static_cast<ptrdiff_t>(end),
                     [](utf8proc_int32_t a, utf8proc_int32_t b) {
                       return CombiningClass(a) < CombiningClass(b);
                     });
    begin = end;
  }
}

std::string NormalizeChunk(std::string_view chunk, Kind kind) {
  const utf8proc_option_t options = OptionsOf(kind);
  std::vector<utf8proc_int32_t> cps;
  int length = 0;
  for (size_t at = 0; at < chunk.size(); at += static_cast<size_t>(length)) {
    const auto cp = static_cast<utf8proc_int32_t>(DecodeUtf8(chunk.data() + at, &length));
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(cp, parts, 32, options, &boundary);
    if (count <= 0 || count > 32) {
      cps.push_back(cp);
    } else {
      cps.insert(cps.end(), parts, parts + count);
    }
  }
  OrderMarks(&cps);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(cps.data(), static_cast<utf8proc_ssize_t>(cps.size()), options);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendCodePoint(static_cast<char32_t>(cps[static_cast<size_t>(i)]), &out);
  }
  return out;
}

// How a character takes part in a normal form.
enum class Part {
  kChanging,  // may change, or join with what stands before it
  kStable,    // stands for itself, and what follows may join with it
  kWall,      // stands for itself: the package's tables (Unicode 9) do not know it
};

Part PartOf(const char* p, Kind kind, int* length) {
  const uint16_t cls = CharClassAt(p, length);
  if ((cls & CharClass::kNewMark) != 0) return Part::kWall;
  const bool stable = kind == Kind::kNfc ? (cls & CharClass::kNfcInert) != 0 : *length == 1;
  return stable ? Part::kStable : Part::kChanging;
}

void UnicodeForm(const NormalizedText& in, Kind kind, NormalizedText* out) {
  Writer writer(in, out);
  const std::string_view text = in.text;
  size_t copied = 0;  // the input up to here is written
  size_t begin = 0;   // of what would be normalised together with the character at `at`
  int length = 0;
  for (size_t at = 0; at < text.size();) {
    const Part part = PartOf(text.data() + at, kind, &length);
    if (part != Part::kChanging) {
      begin = part == Part::kStable ? at : at + static_cast<size_t>(length);
      at += static_cast<size_t>(length);
      continue;
    }
    size_t end = at;
    while (end < text.size() && PartOf(text.data() + end, kind, &length) == Part::kChanging) {
      end += static_cast<size_t>(length);
    }
    writer.Copy(copied, begin);
    writer.Write(NormalizeChunk(text.substr(begin, end - begin), kind), begin);
    copied = begin = at = end;
  }
  writer.Copy(copied, text.size());
}

void Lowercase(const NormalizedText& in, NormalizedText* out) {
  Writer writer(in, out);
  std::string lower;
  int length = 0;
  for (size_t at = 0; at < in.text.size(); at += static_cast<size_t>(length)) {
    const char32_t cp = DecodeUtf8(in.text.data() + at, &length);
    lower.clear();
    if (cp == 0x130) {
      lower = "i\xCC\x87";  // the one letter whose small form is two characters
    } else {
      AppendCodePoint(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(cp))),
                      &lower);
    }
    writer.Write(lower, at);
  }
}

void StripAccents(const NormalizedText& in, NormalizedText* out) {
  Writer writer(in, out);
  int length = 0;
  for (size_t at = 0; at < in.text.size(); at += static_cast<size_t>(length)) {
    const uint16_t cls = CharClassAt(in.text.data() + at, &length);
    if ((cls & (CharClass::kMark | CharClass::kNewMark)) == CharClass::kMark) continue;
    writer.Copy(at, at + static_cast<size_t>(length));
  }
}

void Strip(const NormalizedText& in, const NormalizerStep& step, NormalizedText* out) {
  Writer writer(in, out);
  size_t begin = 0;
  size_t end = in.text.size();
  int length = 0;
  const auto is_space = [&](size_t at) {
    return (CharClassAt(in.text.data() + at, &length) & CharClass::kSpace) != 0;
  };
  while (step.left && begin < end && is_space(begin)) begin += static_cast<size_t>(length);
  while (step.right && begin < end) {
    const size_t last = PreviousUtf8Start(in.text, end);
    if (!is_space(last)) break;
    end = last;
  }
  writer.Copy(begin, end);
}

void Replace(const NormalizedText& in, const NormalizerStep& step, NormalizedText* out) {
  Writer writer(in, out);
  size_t at = 0;
  for (size_t found = in.text.find(step.pattern); found != std::string::npos;
       found = in.text.find(step.pattern, at)) {
    writer.Copy(at, found);
    writer.Write(step.content, found);
    at = found + step.pattern.size();
    if (out->text.size() > std::max(kGrowthMax, 16 * in.text.size())) break;
  }
  writer.Copy(at, in.text.size());
}

void Prepend(const NormalizedText& in, const NormalizerStep& step, NormalizedText* out) {
  Writer writer(in, out);
  if (!in.text.empty()) writer.Write(step.content, 0);
  writer.Copy(0, in.text.size());
}

void RunStep(const NormalizerStep& step, const NormalizedText& in, NormalizedText* out) {
  switch (step.kind) {
    case Kind::kNfc:
    case Kind::kNfd:
    case Kind::kNfkc:
    case Kind::kNfkd:
      UnicodeForm(in, step.kind, out);
      break;
    case Kind::kLowercase:
      Lowercase(in, out);
      break;
    case Kind::kStripAccents:
      StripAccents(in, out);
      break;
    case Kind::kStrip:
      Strip(in, step, out);
      break;
    case Kind::kReplace:
      Replace(in, step, out);
      break;
    case Kind::kPrepend:
      Prepend(in, step, out);
      break;
  }
}

}  // namespace

Result<Normalizer> Normalizer::Compile(const std::vector<NormalizerStep>& steps) {
  if (steps.size() > kStepsMax) {
    return Invalid(
        Format("the normalizer has {} steps, at most {} are allowed", steps.size(), kStepsMax));
  }
  Normalizer out;
  for (const NormalizerStep& step : steps) {
    if (ValidUtf8Prefix(step.pattern) != step.pattern.size() ||
        ValidUtf8Prefix(step.content) != step.content.size()) {
      return Invalid("a normalizer's pattern or content is not valid UTF-8");
    }
    if (step.kind == Kind::kReplace && step.pattern.empty()) continue;
    if (step.kind == Kind::kPrepend && step.content.empty()) continue;
    out.steps_.push_back(step);
  }
  return out;
}

void Normalizer::Run(std::string_view text, Track track, NormalizedText* out,
                     NormalizedText* work) const {
  out->text.assign(text);
  out->source.clear();
  if (track == Track::kSource) {
    out->source.resize(text.size() + 1);
    for (size_t i = 0; i <= text.size(); ++i) out->source[i] = i;
  }
  for (const NormalizerStep& step : steps_) {
    RunStep(step, *out, work);
    std::swap(*out, *work);
  }
}

}  // namespace deepinfer
