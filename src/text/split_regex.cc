#include "text/split_regex.h"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/format.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr size_t kPatternBytesMax = 16384;
constexpr uint32_t kFirstTrySteps = 1024;
constexpr uint64_t kStepsPerByte = 256;
constexpr uint64_t kStepsFloor = 1'000'000;
constexpr uint32_t kHeapKibMax = 256 * 1024;
constexpr uint32_t kParenthesesMax = 100;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// Class bodies. PCRE2's own \s also takes U+180E, and its \w leaves out marks.
constexpr std::string_view kSpaceClass = R"(\x{9}-\x{d}\x{20}\x{85}\p{Z})";
constexpr std::string_view kHexClass = "0-9a-fA-F";
constexpr std::string_view kWordClass =
    R"(\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

// Spells a pattern of Oniguruma (Ruby syntax) for PCRE2.
class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (at_ < pattern_.size()) DI_TRY(in_class_ ? StepInClass() : Step());
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }

  void Copy(size_t bytes) {
    out_ += rest().substr(0, bytes);
    at_ += bytes;
  }

  // At a backslash.
  void Escape() {
    const char escape = rest().size() > 1 ? rest()[1] : '\\';
    const std::string_view body = escape == 's' || escape == 'S'   ? kSpaceClass
                                  : escape == 'w' || escape == 'W' ? kWordClass
                                  : escape == 'h' || escape == 'H' ? kHexClass
                                                                   : std::string_view();
    const bool negated = escape >= 'A' && escape <= 'Z';
    if (body.empty() || (in_class_ && negated)) {
      const size_t brace = rest().find('}');
      const bool property = (escape == 'p' || escape == 'P' || escape == 'x') &&
                            rest().size() > 2 && rest()[2] == '{' &&
                            brace != std::string_view::npos;
      Copy(property ? brace + 1 : std::min<size_t>(2, rest().size()));
      return;
    }
    out_ += in_class_ ? std::string(body) : Format("[{}{}]", negated ? "^" : "", body);
    at_ += 2;
  }

  Status Step() {
    const char c = rest()[0];
    if (c == '*' || c == '+' || c == '?') {
      Copy(1);
      return {};
    }
    if (c == '{') {
      Interval();
      return {};
    }
    if (c == ')' && !groups_.empty()) {
      atom_ = groups_.back();
      groups_.pop_back();
      Copy(1);
      return {};
    }
    atom_ = out_.size();
    if (c == '(') groups_.push_back(atom_);
    if (c == '\\') {
      Escape();
    } else if (c == '[') {
      Copy(rest().size() > 1 && rest()[1] == '^' ? 2 : 1);
      in_class_ = true;
      class_body_ = at_;
    } else {
      Copy(static_cast<size_t>(Utf8Length(c)));
    }
    return {};
  }

  // {n,m} behind an atom. A + after it repeats the whole, where PCRE2 would read "possessive".
  void Interval() {
    const size_t end = rest().find('}');
    const bool interval =
        end != std::string_view::npos && end > 1 &&
        rest().substr(1, end - 1).find_first_not_of("0123456789,") == std::string_view::npos;
    if (!interval) {
      atom_ = out_.size();
      Copy(1);
      return;
    }
    Copy(end + 1);
    if (!rest().starts_with('+')) return;
    out_.insert(atom_, "(?:");
    out_ += ')';
  }

  Status StepInClass() {
    const char c = rest()[0];
    if (c == '\\') {
      Escape();
    } else if (rest().starts_with("[:") && rest().find(":]") != std::string_view::npos) {
      Copy(rest().find(":]") + 2);
    } else if (c == '[' || rest().starts_with("&&")) {
      return Invalid(Format("split pattern {:?}: the nested class at byte {} is not supported",
                            pattern_, at_));
    } else {
      if (c == ']' && at_ != class_body_) in_class_ = false;
      Copy(static_cast<size_t>(Utf8Length(c)));
    }
    return {};
  }

  std::string_view pattern_;
  std::string out_;
  size_t at_ = 0;
  size_t atom_ = 0;             // where the last atom starts in out_
  std::vector<size_t> groups_;  // where the open groups start in out_
  bool in_class_ = false;
  size_t class_body_ = 0;  // where the open class's first member stands
};

}  // namespace

struct SplitRegex::Impl {
  std::unique_ptr<pcre2_code, CodeFree> code;

  // rc of pcre2_match; charges `budget` and widens the limit while it allows.
  int MatchAt(std::string_view text, size_t from, pcre2_match_data* data,
              pcre2_match_context* context, uint64_t* budget) const {
    uint64_t limit = kFirstTrySteps;
    for (;;) {
      pcre2_set_match_limit(context, static_cast<uint32_t>(limit));
      const int rc = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                 from, PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, data, context);
      const bool out_of_steps = rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT ||
                                rc == PCRE2_ERROR_DEPTHLIMIT;
      if (limit > kFirstTrySteps || out_of_steps) *budget -= std::min(*budget, limit);
      if (!out_of_steps) return rc;
      if (rc != PCRE2_ERROR_MATCHLIMIT || *budget == 0) return rc;
      limit = std::min<uint64_t>({limit * 8, *budget, UINT32_MAX});
    }
  }
};

SplitRegex::SplitRegex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SplitRegex::~SplitRegex() = default;

Result<std::unique_ptr<SplitRegex>> SplitRegex::Compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return Invalid(Format("split pattern has {} bytes, at most {} are allowed", pattern.size(),
                          kPatternBytesMax));
  }
  if (ValidUtf8Prefix(pattern) != pattern.size()) {
    return Invalid("split pattern is not valid UTF-8");
  }
  DI_ASSIGN(const std::string translated, PatternTranslator(pattern).Run());
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) return Exhausted("no memory for a split pattern");
  pcre2_set_parens_nest_limit(context.get(), kParenthesesMax);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY | PCRE2_MULTILINE,
      &error, &offset, context.get()));
  if (impl->code == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return Invalid(Format("split pattern {:?} does not compile: {} near byte {}", pattern,
                          reinterpret_cast<const char*>(message), offset));
  }
  return std::unique_ptr<SplitRegex>(new SplitRegex(std::move(impl)));
}

void SplitRegex::FindAll(std::string_view text, std::vector<PatternMatch>* matches) const {
  matches->clear();
  std::unique_ptr<pcre2_match_data, MatchDataFree> data(
      pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  std::unique_ptr<pcre2_match_context, MatchContextFree> context(
      pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) return;
  pcre2_set_heap_limit(context.get(), kHeapKibMax);
  uint64_t budget = kStepsFloor + kStepsPerByte * text.size();
  size_t from = 0;
  size_t last_end = SIZE_MAX;
  while (from <= text.size()) {
    const int rc = impl_->MatchAt(text, from, data.get(), context.get(), &budget);
    if (rc < 0) {
      if (from >= text.size() || budget == 0) return;
      from += static_cast<size_t>(Utf8Length(text[from]));
      continue;
    }
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data.get());
    const PatternMatch match = {found[0], found[1]};
    if (match.end < match.begin || match.begin < from) return;  // \K in a lookaround
    if (match.begin == match.end && match.end == last_end) {
      // An empty match right after the last one would repeat for ever.
      if (from >= text.size()) return;
      from += static_cast<size_t>(Utf8Length(text[from]));
      continue;
    }
    matches->push_back(match);
    from = match.end;
    last_end = match.end;
  }
}

}  // namespace deepinfer
