#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

using Kind = PreTokenizerStep::Kind;
using Behavior = PreTokenizerStep::Behavior;
using Ranges = std::vector<PatternMatch>;

constexpr size_t kStepsMax = 64;

bool IsCovering(PatternKind kind) {
  return kind == PatternKind::kGpt2 || kind == PatternKind::kLlama3 ||
         kind == PatternKind::kQwen2 || kind == PatternKind::kQwen35;
}

bool IsDeepSeekCjk(const char* p) {
  PatternMatch match;
  const auto length = static_cast<size_t>(Utf8Length(*p));
  return length == 3 &&
         NextPatternMatch(PatternKind::kDeepSeekCjk, std::string_view(p, length), 0, &match);
}

// Runs of characters of `mask`, each its own match when `single`.
enum class Runs { kSingle, kWhole };
void FindClass(std::string_view text, uint16_t mask, Runs runs, Ranges* matches) {
  int length = 0;
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(length)) {
    if ((CharClassAt(text.data() + at, &length) & mask) == 0) continue;
    const size_t end = at + static_cast<size_t>(length);
    if (runs == Runs::kWhole && !matches->empty() && matches->back().end == at) {
      matches->back().end = end;
    } else {
      matches->push_back({at, end});
    }
  }
}

// ASCII punctuation and symbols, and category P.
void FindPunctuation(std::string_view text, Ranges* matches) {
  int length = 0;
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(length)) {
    const uint16_t cls = CharClassAt(text.data() + at, &length);
    const uint16_t mask = length == 1 ? CharClass::kPunct | CharClass::kSymbol : CharClass::kPunct;
    if ((cls & mask) != 0 && (cls & CharClass::kNewPunct) == 0)
      matches->push_back({at, at + static_cast<size_t>(length)});
  }
}

// \w+|[^\w\s]+
void FindWords(std::string_view text, Ranges* matches) {
  int length = 0;
  int last = 0;  // 1: in a word, 2: in other signs
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(length)) {
    const uint16_t cls = CharClassAt(text.data() + at, &length);
    const int kind = (cls & CharClass::kWord) != 0 ? 1 : (cls & CharClass::kSpace) != 0 ? 0 : 2;
    const size_t end = at + static_cast<size_t>(length);
    if (kind != 0 && kind == last) {
      matches->back().end = end;
    } else if (kind != 0) {
      matches->push_back({at, end});
    }
    last = kind;
  }
}

void FindLiteral(std::string_view text, std::string_view literal, Ranges* matches) {
  if (literal.empty()) return;
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    matches->push_back({at, at + literal.size()});
  }
}

void FindScanner(std::string_view text, PatternKind kind, Ranges* matches) {
  PatternMatch match;
  for (size_t from = 0; NextPatternMatch(kind, text, from, &match); from = match.end) {
    matches->push_back(match);
  }
}

struct Part {
  PatternMatch range;
  bool match = false;
};

// Matches and the gaps between them, in order.
template <typename Visit>
void VisitParts(size_t size, const Ranges& matches, bool invert, Visit&& visit) {
  size_t at = 0;
  for (const PatternMatch& match : matches) {
    if (match.begin > at) visit(Part{{at, match.begin}, invert});
    visit(Part{match, !invert});
    at = match.end;
  }
  if (at < size) visit(Part{{at, size}, invert});
}

// Appends the pieces of one text of `size` bytes at `base`.
void Cut(size_t base, size_t size, const Ranges& matches, const PreTokenizerStep& step,
         Ranges* out) {
  const size_t first = out->size();
  bool previous = false;  // was the part before a match
  PatternMatch pending;   // kMergedWithNext: a match that waits for the part after it
  bool has_pending = false;
  VisitParts(size, matches, step.invert, [&](const Part& part) {
    const PatternMatch range = {base + part.range.begin, base + part.range.end};
    const bool has_last = out->size() > first;
    switch (step.behavior) {
      case Behavior::kIsolated:
        out->push_back(range);
        break;
      case Behavior::kRemoved:
        if (!part.match) out->push_back(range);
        break;
      case Behavior::kContiguous:
        if (part.match == previous && has_last) {
          out->back().end = range.end;
        } else {
          out->push_back(range);
        }
        break;
      case Behavior::kMergedWithPrevious:
        if (part.match && !previous && has_last) {
          out->back().end = range.end;
        } else {
          out->push_back(range);
        }
        break;
      case Behavior::kMergedWithNext:
        if (part.match) {
          if (has_pending) out->push_back(pending);
          pending = range;
        } else {
          out->push_back({has_pending ? pending.begin : range.begin, range.end});
        }
        has_pending = part.match;
        break;
    }
    previous = part.match;
  });
  if (has_pending) out->push_back(pending);
  // Empty matches make no piece.
  const auto empty = [](const PatternMatch& range) { return range.begin == range.end; };
  out->erase(std::remove_if(out->begin() + static_cast<ptrdiff_t>(first), out->end(), empty),
             out->end());
}

}  // namespace

bool FastSplitter::Next(std::string_view* piece) {
  if (at_ >= text_.size()) return false;
  if (plan_ == Plan::kDigits) return NextDigits(piece);
  if (plan_ == Plan::kDeepSeek) return NextDeepSeek(piece);
  PatternMatch match;
  if (!NextPatternMatch(pattern_, text_, at_, &match)) return false;
  *piece = Take(match.end);
  return true;
}

std::string_view FastSplitter::Take(size_t end) {
  const std::string_view piece = text_.substr(at_, end - at_);
  at_ = end;
  return piece;
}

bool FastSplitter::NextDigits(std::string_view* piece) {
  int length = 0;
  if (at_ >= region_end_) {
    if ((CharClassAt(text_.data() + at_, &length) & CharClass::kNumber) != 0) {
      *piece = Take(at_ + static_cast<size_t>(length));
      return true;
    }
    region_end_ = at_;
    while (region_end_ < text_.size() &&
           (CharClassAt(text_.data() + region_end_, &length) & CharClass::kNumber) == 0) {
      region_end_ += static_cast<size_t>(length);
    }
  }
  PatternMatch match;
  if (!NextPatternMatch(pattern_, text_.substr(0, region_end_), at_, &match)) return false;
  *piece = Take(match.end);
  return true;
}

bool FastSplitter::NextDeepSeek(std::string_view* piece) {
  const char* base = text_.data();
  PatternMatch match;
  if (match_end_ > at_) {
    *piece = Take(match_end_);
    return true;
  }
  if (at_ >= region_end_) {
    int length = 0;
    if ((CharClassAt(base + at_, &length) & CharClass::kNumber) != 0) {
      NextPatternMatch(PatternKind::kDeepSeekNumbers, text_, at_, &match);
      *piece = Take(match.end);
      return true;
    }
    if (IsDeepSeekCjk(base + at_)) {
      NextPatternMatch(PatternKind::kDeepSeekCjk, text_, at_, &match);
      *piece = Take(match.end);
      return true;
    }
    region_end_ = at_;
    while (region_end_ < text_.size() &&
           (CharClassAt(base + region_end_, &length) & CharClass::kNumber) == 0 &&
           !IsDeepSeekCjk(base + region_end_)) {
      region_end_ += static_cast<size_t>(length);
    }
  }
  const std::string_view region = text_.substr(0, region_end_);
  if (!NextPatternMatch(PatternKind::kDeepSeekMain, region, at_, &match)) {
    *piece = Take(region_end_);
  } else if (match.begin > at_) {
    match_end_ = match.end;
    *piece = Take(match.begin);
  } else {
    *piece = Take(match.end);
  }
  return true;
}

size_t PreTokenizer::Scratch::bytes() const {
  return text.capacity() + other_text.capacity() +
         (pieces.capacity() + other_pieces.capacity() + matches.capacity()) * sizeof(PatternMatch);
}

Result<PreTokenizer::Step> PreTokenizer::CompileStep(const PreTokenizerStep& spec) {
  Step step;
  step.spec = spec;
  if (spec.kind == Kind::kMetaspace &&
      (spec.replacement.empty() || ValidUtf8Prefix(spec.replacement) != spec.replacement.size())) {
    return Invalid("the Metaspace replacement must be one character of valid UTF-8");
  }
  if (spec.kind != Kind::kSplit) return step;
  if (ValidUtf8Prefix(spec.pattern) != spec.pattern.size()) {
    return Invalid("a Split pattern is not valid UTF-8");
  }
  if (!spec.pattern_is_regex) return step;
  step.scanner = RecognisePattern(spec.pattern);
  if (!step.scanner.has_value()) {
    DI_ASSIGN(step.regex, SplitRegex::Compile(spec.pattern));
  }
  return step;
}

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Compile(
    const std::vector<PreTokenizerStep>& steps) {
  if (steps.size() > kStepsMax) {
    return Invalid(
        Format("the pre-tokenizer has {} steps, at most {} are allowed", steps.size(), kStepsMax));
  }
  auto out = std::make_unique<PreTokenizer>();
  for (const PreTokenizerStep& spec : steps) {
    DI_ASSIGN(Step step, CompileStep(spec));
    out->steps_.push_back(std::move(step));
  }
  out->byte_level_ = !steps.empty() && steps.back().kind == Kind::kByteLevel;
  out->ChoosePlan();
  return out;
}

void PreTokenizer::ChoosePlan() {
  if (!byte_level_ || steps_.back().spec.add_prefix_space) return;
  const auto isolated = [this](size_t i, PatternKind kind) {
    const Step& step = steps_[i];
    return step.spec.kind == Kind::kSplit && step.scanner == kind &&
           step.spec.behavior == Behavior::kIsolated && !step.spec.invert;
  };
  const bool own_pattern = steps_.back().spec.use_regex;
  const Step& first = steps_.front();
  if (steps_.size() == 1 && own_pattern) {
    plan_ = FastSplitter::Plan::kSingle;
  } else if (steps_.size() == 2 && own_pattern && first.spec.kind == Kind::kDigits &&
             first.spec.individual_digits) {
    plan_ = FastSplitter::Plan::kDigits;
  } else if (steps_.size() == 2 && !own_pattern && first.spec.kind == Kind::kSplit &&
             first.scanner.has_value() && IsCovering(*first.scanner) &&
             (isolated(0, *first.scanner) ||
              (first.spec.behavior == Behavior::kRemoved && first.spec.invert))) {
    plan_ = FastSplitter::Plan::kSingle;
    pattern_ = *first.scanner;
  } else if (steps_.size() == 4 && !own_pattern && isolated(0, PatternKind::kDeepSeekNumbers) &&
             isolated(1, PatternKind::kDeepSeekCjk) && isolated(2, PatternKind::kDeepSeekMain)) {
    plan_ = FastSplitter::Plan::kDeepSeek;
  }
}

void PreTokenizer::RunSteps(std::string_view text, Place place, Scratch* scratch) const {
  scratch->text.assign(text);
  scratch->pieces.clear();
  if (!text.empty()) scratch->pieces.push_back({0, text.size()});
  for (const Step& step : steps_) Apply(step, place, &step == &steps_.back(), scratch);
}

void PreTokenizer::Apply(const Step& step, Place place, bool last, Scratch* scratch) const {
  if (step.spec.kind == Kind::kMetaspace) {
    ApplyMetaspace(step, place, scratch);
  } else if (step.spec.kind == Kind::kByteLevel) {
    ApplyByteLevel(step, last, scratch);
  } else {
    ApplySplit(step, scratch);
  }
}

void PreTokenizer::ApplySplit(const Step& step, Scratch* scratch) const {
  PreTokenizerStep how = step.spec;
  scratch->other_pieces.clear();
  for (const PatternMatch& piece : scratch->pieces) {
    const std::string_view text =
        std::string_view(scratch->text).substr(piece.begin, piece.end - piece.begin);
    Ranges* matches = &scratch->matches;
    matches->clear();
    switch (step.spec.kind) {
      case Kind::kDigits:
        FindClass(text, CharClass::kNumber,
                  step.spec.individual_digits ? Runs::kSingle : Runs::kWhole, matches);
        how.behavior = Behavior::kIsolated;
        how.invert = false;
        break;
      case Kind::kPunctuation:
        FindPunctuation(text, matches);
        how.invert = false;
        break;
      case Kind::kWhitespace:
        FindWords(text, matches);
        how.behavior = Behavior::kRemoved;
        how.invert = true;
        break;
      case Kind::kWhitespaceSplit:
        FindClass(text, CharClass::kSpace, Runs::kSingle, matches);
        how.behavior = Behavior::kRemoved;
        how.invert = false;
        break;
      default:
        if (step.regex != nullptr) {
          step.regex->FindAll(text, matches);
        } else if (step.scanner.has_value()) {
          FindScanner(text, *step.scanner, matches);
        } else {
          FindLiteral(text, step.spec.pattern, matches);
        }
    }
    Cut(piece.begin, text.size(), *matches, how, &scratch->other_pieces);
  }
  scratch->pieces.swap(scratch->other_pieces);
}

void PreTokenizer::ApplyMetaspace(const Step& step, Place place, Scratch* scratch) const {
  const std::string& mark = step.spec.replacement;
  scratch->other_text.clear();
  scratch->other_pieces.clear();
  bool first = true;
  for (const PatternMatch& piece : scratch->pieces) {
    const std::string_view text =
        std::string_view(scratch->text).substr(piece.begin, piece.end - piece.begin);
    const size_t begin = scratch->other_text.size();
    const bool starts_marked = text.front() == ' ' || text.starts_with(mark);
    const bool prepend =
        step.spec.prepend == PreTokenizerStep::Prepend::kAlways ||
        (step.spec.prepend == PreTokenizerStep::Prepend::kFirst && first && place == Place::kStart);
    if (prepend && !starts_marked) scratch->other_text += mark;
    for (const char c : text) {
      if (c == ' ') {
        scratch->other_text += mark;
      } else {
        scratch->other_text += c;
      }
    }
    first = false;
    const size_t size = scratch->other_text.size() - begin;
    scratch->matches.clear();
    if (step.spec.split) {
      FindLiteral(std::string_view(scratch->other_text).substr(begin), mark, &scratch->matches);
    }
    PreTokenizerStep how;
    how.behavior = Behavior::kMergedWithNext;
    Cut(begin, size, scratch->matches, how, &scratch->other_pieces);
  }
  scratch->text.swap(scratch->other_text);
  scratch->pieces.swap(scratch->other_pieces);
}

void PreTokenizer::ApplyByteLevel(const Step& step, bool last, Scratch* scratch) const {
  if (step.spec.add_prefix_space) {
    scratch->other_text.clear();
    for (PatternMatch& piece : scratch->pieces) {
      const size_t begin = scratch->other_text.size();
      if (scratch->text[piece.begin] != ' ') scratch->other_text += ' ';
      scratch->other_text.append(scratch->text, piece.begin, piece.end - piece.begin);
      piece = {begin, scratch->other_text.size()};
    }
    scratch->text.swap(scratch->other_text);
  }
  if (step.spec.use_regex) {
    scratch->other_pieces.clear();
    for (const PatternMatch& piece : scratch->pieces) {
      const std::string_view text = std::string_view(scratch->text).substr(0, piece.end);
      PatternMatch match;
      for (size_t from = piece.begin; NextPatternMatch(PatternKind::kGpt2, text, from, &match);
           from = match.end) {
        scratch->other_pieces.push_back(match);
      }
    }
    scratch->pieces.swap(scratch->other_pieces);
  }
  if (last) return;  // the model reads bytes
  scratch->other_text.clear();
  for (PatternMatch& piece : scratch->pieces) {
    const size_t begin = scratch->other_text.size();
    AppendByteLevel(std::string_view(scratch->text).substr(piece.begin, piece.end - piece.begin),
                    &scratch->other_text);
    piece = {begin, scratch->other_text.size()};
  }
  scratch->text.swap(scratch->other_text);
}

}  // namespace deepinfer
