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

// White_Space as a class body: PCRE2's own \s also takes U+180E.
constexpr std::string_view kSpaceClass = R"(\x{9}-\x{d}\x{20}\x{85}\p{Z})";

// What an escape that PCRE2 reads differently means to Oniguruma; empty: the same.
std::string Escape(char escape, bool in_class) {
  const auto wrap = [in_class](std::string_view body) {
    return in_class ? std::string(body) : Format("[{}]", body);
  };
  if (escape == 's') return wrap(kSpaceClass);
  if (escape == 'h') return wrap("0-9a-fA-F");
  if (escape == 'S' && !in_class) return Format("[^{}]", kSpaceClass);
  return {};
}

Result<std::string> Translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  size_t class_body = 0;  // where the open class's first member stands
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    if (c == '\\' && rest.size() > 1) {
      const std::string meaning = Escape(rest[1], in_class);
      out += meaning.empty() ? rest.substr(0, 2) : std::string_view(meaning);
      ++i;
    } else if (!in_class) {
      out += c;
      if (c != '[') continue;
      in_class = true;
      class_body = rest.size() > 1 && rest[1] == '^' ? i + 2 : i + 1;
    } else if (rest.starts_with("[:") && rest.find(":]") != std::string_view::npos) {
      const size_t end = rest.find(":]") + 2;
      out += rest.substr(0, end);
      i += end - 1;
    } else if (c == '[' || rest.starts_with("&&")) {
      return Invalid(
          Format("split pattern {:?}: the nested class at byte {} is not supported", pattern, i));
    } else {
      if (c == ']' && i != class_body) in_class = false;
      out += c;
    }
  }
  return out;
}

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
  DI_ASSIGN(const std::string translated, Translate(pattern));
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
