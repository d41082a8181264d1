// Methods of str that search a text: split and its kin, find, count, startswith, replace.
#include <algorithm>
#include <limits>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_ops.h"

namespace deepinfer::jinja {
namespace {

using Ranges = std::vector<std::pair<size_t, size_t>>;

size_t FindLast(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return text.size();
  const std::vector<size_t> found = FindFromRight(text, pattern, 1);
  return found.empty() ? std::string_view::npos : found[0];
}

bool MakeParts(Runtime& runtime, const MarkedText& text, const Ranges& ranges, SequenceType type,
               Value* out) {
  std::vector<Value> parts(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!runtime.MakeString(text.Slice(ranges[i].first, ranges[i].second), &parts[i])) return false;
  }
  return runtime.MakeSequence(type, std::move(parts), out);
}

Ranges SplitAtSpace(std::string_view text, size_t splits) {
  Ranges ranges;
  for (size_t at = SkipSpace(text, 0); at < text.size(); at = SkipSpace(text, at)) {
    if (ranges.size() == splits) {
      ranges.emplace_back(at, text.size());  // the rest as it is
      break;
    }
    const size_t begin = at;
    size_t next = at;
    while (at < text.size() && !IsSpace(DecodeAt(text, at, &next))) at = next;
    ranges.emplace_back(begin, at);
  }
  return ranges;
}

Ranges SplitAtSpaceFromRight(std::string_view text, size_t splits) {
  Ranges ranges;
  size_t end = TrimRightEnd(text);
  while (end > 0) {
    if (ranges.size() == splits) {
      ranges.emplace_back(0, end);  // the rest as it is
      break;
    }
    size_t begin = end;
    while (begin > 0) {
      const size_t previous = PreviousBoundary(text, begin);
      size_t next;
      if (IsSpace(DecodeAt(text, previous, &next))) break;
      begin = previous;
    }
    ranges.emplace_back(begin, end);
    end = TrimRightEnd(text.substr(0, begin));
  }
  std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

Ranges SplitAt(std::string_view text, std::string_view separator, size_t splits) {
  Ranges ranges;
  size_t at = 0;
  while (ranges.size() < splits) {
    const size_t found = FindText(text, separator, at);
    if (found == std::string_view::npos) break;
    ranges.emplace_back(at, found);
    at = found + separator.size();
  }
  ranges.emplace_back(at, text.size());
  return ranges;
}

Ranges SplitAtFromRight(std::string_view text, std::string_view separator, size_t splits) {
  Ranges ranges;
  size_t end = text.size();
  for (const size_t found : FindFromRight(text, separator, splits)) {
    ranges.emplace_back(found + separator.size(), end);
    end = found;
  }
  ranges.emplace_back(0, end);
  std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

template <bool kFromRight>
bool SplitMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"sep"}, {"maxsplit"}};
  Value bound[2];
  int64_t count;
  if (!Bind(runtime, "split", args, kParameters, bound) ||
      !ReadInt(runtime, "maxsplit", bound[1], -1, &count)) {
    return false;
  }
  const size_t splits = count < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(count);
  const MarkedText& text = self.text();
  if (!runtime.ChargeBytes(text.size())) return false;
  if (bound[0].is_none() || (bound[0].is_undefined() && args.positional.empty())) {
    return MakeParts(
        runtime, text,
        kFromRight ? SplitAtSpaceFromRight(text.view(), splits) : SplitAtSpace(text.view(), splits),
        SequenceType::kList, out);
  }
  const MarkedText* separator;
  if (!NeedText(runtime, "the separator", bound[0], &separator)) return false;
  if (separator->empty()) return runtime.Fail("empty separator");
  return MakeParts(runtime, text,
                   kFromRight ? SplitAtFromRight(text.view(), separator->view(), splits)
                              : SplitAt(text.view(), separator->view(), splits),
                   SequenceType::kList, out);
}

bool SplitLinesMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"keepends"}};
  Value keep;
  if (!Bind(runtime, "splitlines", args, kParameters, &keep)) return false;
  if (!runtime.ChargeBytes(self.text().size())) return false;
  Ranges ranges;
  for (const Line& line : SplitLines(self.str())) {
    ranges.emplace_back(line.begin, Truthy(keep) ? line.next : line.end);
  }
  return MakeParts(runtime, self.text(), ranges, SequenceType::kList, out);
}

template <bool kFromRight>
bool PartitionMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"sep", Parameter::kRequired}};
  Value bound;
  const MarkedText* separator;
  if (!Bind(runtime, "partition", args, kParameters, &bound) ||
      !NeedText(runtime, "the separator", bound, &separator)) {
    return false;
  }
  if (separator->empty()) return runtime.Fail("empty separator");
  const MarkedText& text = self.text();
  if (!runtime.ChargeBytes(text.size())) return false;
  const size_t found = kFromRight ? FindLast(text.view(), separator->view())
                                  : FindText(text.view(), separator->view());
  Ranges ranges;
  if (found != std::string_view::npos) {
    ranges = {
        {0, found}, {found, found + separator->size()}, {found + separator->size(), text.size()}};
  } else if (kFromRight) {
    ranges = {{0, 0}, {0, 0}, {0, text.size()}};
  } else {
    ranges = {{0, text.size()}, {0, 0}, {0, 0}};
  }
  return MakeParts(runtime, text, ranges, SequenceType::kTuple, out);
}

// The byte range of optional start and end arguments.
bool ReadWindow(Runtime& runtime, std::string_view text, const Value& start, const Value& end,
                size_t* first, size_t* last, bool* valid) {
  int64_t bounds[2];
  const auto length = static_cast<int64_t>(CountCodePoints(text));
  if (!runtime.ChargeBytes(text.size()) || !ReadInt(runtime, "start", start, 0, &bounds[0]) ||
      !ReadInt(runtime, "end", end, length, &bounds[1])) {
    return false;
  }
  *valid = bounds[0] <= length;
  for (int64_t& bound : bounds) {
    if (bound < 0) bound = bound < -length ? 0 : bound + length;
    bound = std::min(bound, length);
  }
  *valid = *valid && bounds[0] <= bounds[1];
  *first = ByteOffset(text, static_cast<size_t>(bounds[0]));
  *last = ByteOffset(text, static_cast<size_t>(bounds[1]));
  return true;
}

enum class Search : uint8_t { kFind, kRfind, kIndex, kRindex, kCount };

template <Search kSearch>
bool SearchMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"sub", Parameter::kRequired}, {"start"}, {"end"}};
  Value bound[3];
  const MarkedText* wanted;
  size_t first, last;
  bool valid;
  if (!Bind(runtime, "find", args, kParameters, bound) ||
      !NeedText(runtime, "the argument", bound[0], &wanted) ||
      !ReadWindow(runtime, self.str(), bound[1], bound[2], &first, &last, &valid)) {
    return false;
  }
  const std::string_view window = valid ? self.str().substr(first, last - first) : "";
  if constexpr (kSearch == Search::kCount) {
    int64_t count =
        valid && wanted->empty() ? static_cast<int64_t>(CountCodePoints(window)) + 1 : 0;
    for (size_t at = 0; valid && !wanted->empty();) {
      at = FindText(window, wanted->view(), at);
      if (at == std::string_view::npos) break;
      ++count;
      at += wanted->size();
    }
    *out = Value::Int(count);
    return true;
  }
  const bool right = kSearch == Search::kRfind || kSearch == Search::kRindex;
  const size_t found = !valid  ? std::string_view::npos
                       : right ? FindLast(window, wanted->view())
                               : FindText(window, wanted->view());
  if (found == std::string_view::npos) {
    if (kSearch == Search::kIndex || kSearch == Search::kRindex) {
      return runtime.Fail("substring not found");
    }
    *out = Value::Int(-1);
    return true;
  }
  *out = Value::Int(static_cast<int64_t>(CountCodePoints(self.str().substr(0, first + found))));
  return true;
}

template <bool kStart>
bool EndsMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"prefix", Parameter::kRequired}, {"start"}, {"end"}};
  Value bound[3];
  size_t first = 0, last = self.text().size();
  bool valid = true;
  if (!Bind(runtime, "startswith", args, kParameters, bound)) return false;
  if (args.positional.size() > 1 &&
      !ReadWindow(runtime, self.str(), bound[1], bound[2], &first, &last, &valid)) {
    return false;
  }
  const std::string_view window = valid ? self.str().substr(first, last - first) : "";
  std::vector<Value> options{bound[0]};
  if (bound[0].is_sequence() && bound[0].sequence().type == SequenceType::kTuple) {
    options = bound[0].sequence().items;
  }
  bool holds = false;
  for (const Value& option : options) {
    const MarkedText* text;
    if (!NeedText(runtime, "the argument", option, &text)) return false;
    holds = holds ||
            (valid && (kStart ? window.starts_with(text->view()) : window.ends_with(text->view())));
  }
  *out = Value::Bool(holds);
  return true;
}

bool ReplaceMethod(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {
      {"old", Parameter::kRequired}, {"new", Parameter::kRequired}, {"count"}};
  Value bound[3];
  const MarkedText* from;
  const MarkedText* to;
  int64_t count;
  return Bind(runtime, "replace", args, kParameters, bound) &&
         NeedText(runtime, "the old text", bound[0], &from) &&
         NeedText(runtime, "the new text", bound[1], &to) &&
         ReadInt(runtime, "count", bound[2], -1, &count) &&
         ReplaceText(runtime, self.text(), *from, *to, count, out);
}

constexpr BuiltinEntry kMethods[] = {
    {"split", SplitMethod<false>},
    {"rsplit", SplitMethod<true>},
    {"splitlines", SplitLinesMethod},
    {"partition", PartitionMethod<false>},
    {"rpartition", PartitionMethod<true>},
    {"find", SearchMethod<Search::kFind>},
    {"rfind", SearchMethod<Search::kRfind>},
    {"index", SearchMethod<Search::kIndex>},
    {"rindex", SearchMethod<Search::kRindex>},
    {"count", SearchMethod<Search::kCount>},
    {"startswith", EndsMethod<true>},
    {"endswith", EndsMethod<false>},
    {"replace", ReplaceMethod},
};

}  // namespace

std::span<const BuiltinEntry> StringSearchMethods() { return kMethods; }

}  // namespace deepinfer::jinja
