// Filters over sequences, dicts and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_ops.h"
#include "text/jinja/value_text.h"

namespace deepinfer::jinja {
namespace {

bool FilterLength(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  int64_t length;
  if (!Bind(runtime, "length", args, {}, nullptr) || !Length(runtime, self, &length)) return false;
  *out = Value::Int(length);
  return true;
}

bool FilterDefault(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"default_value"}, {"boolean"}};
  Value bound[2];
  if (!Bind(runtime, "default", args, kParameters, bound)) return false;
  if (!self.is_undefined() && !(Truthy(bound[1]) && !Truthy(self))) {
    *out = self;
    return true;
  }
  if (args.positional.empty() && args.named.empty()) return runtime.MakeString({}, out);
  *out = bound[0];
  return true;
}

bool FilterFirst(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Bind(runtime, "first", args, {}, nullptr)) return false;
  if (self.is_sequence() && self.sequence().type == SequenceType::kIterator) {
    SequenceObject& iterator = self.sequence();
    *out = iterator.taken < iterator.items.size()
               ? iterator.items[iterator.taken++]
               : Value::Undefined("No first item, sequence was empty.");
    return true;
  }
  if (self.is_string()) {
    if (self.text().empty()) {
      *out = Value::Undefined("No first item, sequence was empty.");
      return true;
    }
    return GetItem(runtime, self, Value::Int(0), out);
  }
  Value items;
  if (!Iterate(runtime, self, &items)) return false;
  const auto& list = items.sequence().items;
  *out = list.empty() ? Value::Undefined("No first item, sequence was empty.") : list.front();
  return true;
}

bool FilterLast(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Bind(runtime, "last", args, {}, nullptr)) return false;
  if (self.is_string() && !self.text().empty()) {
    return GetItem(runtime, self, Value::Int(-1), out);
  }
  if (self.is_sequence() && self.sequence().type == SequenceType::kIterator) {
    return runtime.Fail("'generator' object is not reversible");
  }
  Value items;
  if (!Iterate(runtime, self, &items)) return false;
  const auto& list = items.sequence().items;
  *out = list.empty() ? Value::Undefined("No last item, sequence was empty.") : list.back();
  return true;
}

bool FilterList(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  Value items;
  return Bind(runtime, "list", args, {}, nullptr) && Iterate(runtime, self, &items) &&
         runtime.MakeSequence(SequenceType::kList, items.sequence().items, out);
}

bool FilterReverse(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Bind(runtime, "reverse", args, {}, nullptr)) return false;
  if (self.is_string()) {
    return GetSlice(runtime, self, Value::None(), Value::None(), Value::Int(-1), out);
  }
  Value items;
  if (!Iterate(runtime, self, &items)) return false;
  std::vector<Value> reversed(items.sequence().items.rbegin(), items.sequence().items.rend());
  return runtime.MakeSequence(SequenceType::kIterator, std::move(reversed), out);
}

bool FilterJoin(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"d"}, {"attribute"}};
  Value bound[2], items, separator;
  if (!Bind(runtime, "join", args, kParameters, bound) || !Iterate(runtime, self, &items) ||
      !ToStr(runtime, bound[0], &separator)) {
    return false;
  }
  const bool by_attribute = !bound[1].is_undefined() && !bound[1].is_none();
  MarkedText text;
  bool first = true;
  for (const Value& item : items.sequence().items) {
    if (!std::exchange(first, false)) text.Append(separator.text());
    Value part = item;
    if (by_attribute && !GetPath(runtime, item, bound[1], &part)) return false;
    if (!runtime.ChargeBytes(separator.text().size()) || !AppendStr(runtime, part, &text) ||
        !runtime.CheckSize(text.size())) {
      return false;
    }
  }
  return runtime.MakeString(std::move(text), out);
}

bool FilterItems(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Bind(runtime, "items", args, {}, nullptr)) return false;
  if (self.is_undefined()) return runtime.MakeSequence(SequenceType::kIterator, {}, out);
  if (!self.is_dict()) return runtime.Fail("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().entries) {
    Value pair;
    if (!runtime.MakeSequence(SequenceType::kTuple, {key, value}, &pair)) return false;
    items.push_back(std::move(pair));
  }
  return runtime.MakeSequence(SequenceType::kIterator, std::move(items), out);
}

// What sorting compares: text without case unless `case_sensitive`.
bool SortKey(Runtime& runtime, Value value, bool case_sensitive, Value* out) {
  if (case_sensitive || !value.is_string()) {
    *out = std::move(value);
    return true;
  }
  return runtime.ChargeBytes(value.text().size() * 4) &&
         runtime.MakeString(LowerCase(value.text()), out);
}

using Keyed = std::pair<Value, Value>;  // sort key and item

bool SortKeyed(Runtime& runtime, std::vector<Keyed>* keyed, bool reverse) {
  bool ok = true;
  std::stable_sort(keyed->begin(), keyed->end(), [&](const Keyed& a, const Keyed& b) {
    bool less = false;
    ok = ok && (reverse ? LessThan(runtime, b.first, a.first, &less)
                        : LessThan(runtime, a.first, b.first, &less));
    return ok && less;
  });
  return ok;
}

bool FinishSorted(Runtime& runtime, std::vector<Keyed> keyed, Value* out) {
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& entry : keyed) items.push_back(std::move(entry.second));
  return runtime.MakeSequence(SequenceType::kList, std::move(items), out);
}

// Keys of "a,b.c": a list of one value a path; without attribute the value itself, in a list.
bool MultiKey(Runtime& runtime, const Value& item, const Value& attribute, bool case_sensitive,
              Value* out) {
  std::vector<Value> keys;
  if (attribute.is_string()) {
    std::string_view rest = attribute.str();
    while (true) {
      const size_t comma = rest.find(',');
      const Value path =
          Value::String(MarkedText(std::string(rest.substr(0, comma)), Trust::kTrusted));
      Value value;
      if (!GetPath(runtime, item, path, &value)) return false;
      keys.push_back(std::move(value));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    keys.push_back(item);
    if (!attribute.is_undefined() && !attribute.is_none() &&
        !GetPath(runtime, item, attribute, &keys[0])) {
      return false;
    }
  }
  for (Value& key : keys) {
    if (!SortKey(runtime, Value(key), case_sensitive, &key)) return false;
  }
  return runtime.MakeSequence(SequenceType::kList, std::move(keys), out);
}

bool FilterSort(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"reverse"}, {"case_sensitive"}, {"attribute"}};
  Value bound[3], items;
  if (!Bind(runtime, "sort", args, kParameters, bound) || !Iterate(runtime, self, &items)) {
    return false;
  }
  std::vector<Keyed> keyed;
  for (const Value& item : items.sequence().items) {
    Value key;
    if (!MultiKey(runtime, item, bound[2], Truthy(bound[1]), &key)) return false;
    keyed.emplace_back(std::move(key), item);
  }
  return SortKeyed(runtime, &keyed, Truthy(bound[0])) &&
         FinishSorted(runtime, std::move(keyed), out);
}

bool FilterDictSort(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"case_sensitive"}, {"by"}, {"reverse"}};
  Value bound[3];
  if (!Bind(runtime, "dictsort", args, kParameters, bound)) return false;
  if (!self.is_dict()) return runtime.Fail(Format("cannot sort '{}' as a dict", TypeName(self)));
  const bool by_value = bound[1].is_string() && bound[1].str() == "value";
  if (bound[1].is_string() && !by_value && bound[1].str() != "key") {
    return runtime.Fail("You can only sort by either \"key\" or \"value\"");
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : self.dict().entries) {
    Value sort_key, pair;
    if (!SortKey(runtime, by_value ? value : key, Truthy(bound[0]), &sort_key) ||
        !runtime.MakeSequence(SequenceType::kTuple, {key, value}, &pair)) {
      return false;
    }
    keyed.emplace_back(std::move(sort_key), std::move(pair));
  }
  return SortKeyed(runtime, &keyed, Truthy(bound[2])) &&
         FinishSorted(runtime, std::move(keyed), out);
}

bool FilterUnique(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"case_sensitive"}, {"attribute"}};
  Value bound[2], items;
  if (!Bind(runtime, "unique", args, kParameters, bound) || !Iterate(runtime, self, &items)) {
    return false;
  }
  DictObject seen;
  std::vector<Value> kept;
  for (const Value& item : items.sequence().items) {
    Value value = item, key;
    if (!bound[1].is_undefined() && !GetPath(runtime, item, bound[1], &value)) return false;
    if (!SortKey(runtime, std::move(value), Truthy(bound[0]), &key)) return false;
    if (!IsHashable(key)) return runtime.Fail(Format("unhashable type: '{}'", TypeName(key)));
    if (!runtime.Charge(key.weight())) return false;
    if (seen.Find(key) != nullptr) continue;
    seen.Set(std::move(key), Value::None());
    kept.push_back(item);
  }
  return runtime.MakeSequence(SequenceType::kIterator, std::move(kept), out);
}

template <bool kMax>
bool FilterExtreme(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"case_sensitive"}, {"attribute"}};
  Value bound[2], items, best;
  if (!Bind(runtime, "min", args, kParameters, bound) || !Iterate(runtime, self, &items)) {
    return false;
  }
  *out = Value::Undefined("No aggregated item, sequence was empty.");
  bool first = true;
  for (const Value& item : items.sequence().items) {
    Value value = item, key;
    bool better = first;
    if (!bound[1].is_undefined() && !GetPath(runtime, item, bound[1], &value)) return false;
    if (!SortKey(runtime, std::move(value), Truthy(bound[0]), &key)) return false;
    if (!first &&
        !(kMax ? LessThan(runtime, best, key, &better) : LessThan(runtime, key, best, &better))) {
      return false;
    }
    if (better) {
      best = std::move(key);
      *out = item;
    }
    first = false;
  }
  return true;
}

bool FilterMap(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Truthy(self)) return runtime.MakeSequence(SequenceType::kIterator, {}, out);
  Value items;
  if (!Iterate(runtime, self, &items)) return false;
  std::vector<Value> mapped;
  const bool by_attribute = args.positional.empty();
  Value attribute, fallback, name;
  if (by_attribute) {
    constexpr Parameter kParameters[] = {{"attribute", Parameter::kRequired}, {"default"}};
    Value bound[2];
    if (!Bind(runtime, "map", args, kParameters, bound)) return false;
    attribute = bound[0];
    fallback = bound[1];
  } else {
    name = args.positional.front();
    args.positional.erase(args.positional.begin());
  }
  for (const Value& item : items.sequence().items) {
    Value result;
    const bool ok = by_attribute
                        ? GetPath(runtime, item, attribute, &result, fallback)
                        : CallByName(runtime, FindFilter, "filter", name, item, args, &result);
    if (!ok) return false;
    mapped.push_back(std::move(result));
  }
  return runtime.MakeSequence(SequenceType::kIterator, std::move(mapped), out);
}

template <bool kKeep, bool kAttribute>
bool FilterSelect(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Truthy(self)) return runtime.MakeSequence(SequenceType::kIterator, {}, out);
  Value items, attribute, test;
  if (!Iterate(runtime, self, &items)) return false;
  const auto take_first = [&](Value* value) {
    *value = args.positional.front();
    args.positional.erase(args.positional.begin());
  };
  if (kAttribute) {
    if (args.positional.empty()) return runtime.Fail("Missing parameter for attribute name");
    take_first(&attribute);
  }
  const bool has_test = !args.positional.empty();
  if (has_test) take_first(&test);
  std::vector<Value> kept;
  for (const Value& item : items.sequence().items) {
    Value value = item;
    if (!runtime.Charge(1) || (kAttribute && !GetPath(runtime, item, attribute, &value))) {
      return false;
    }
    if (has_test) {
      Value result;
      if (!CallByName(runtime, FindTest, "test", test, value, args, &result)) return false;
      value = std::move(result);
    }
    if (Truthy(value) == kKeep) kept.push_back(item);
  }
  return runtime.MakeSequence(SequenceType::kIterator, std::move(kept), out);
}

bool FilterGroupBy(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {
      {"attribute", Parameter::kRequired}, {"default"}, {"case_sensitive"}};
  Value bound[3], items;
  if (!Bind(runtime, "groupby", args, kParameters, bound) || !Iterate(runtime, self, &items)) {
    return false;
  }
  const auto value_of = [&](const Value& item, Value* value) {
    return GetPath(runtime, item, bound[0], value, bound[1]);
  };
  std::vector<Keyed> keyed;
  for (const Value& item : items.sequence().items) {
    Value value, key;
    if (!value_of(item, &value) || !SortKey(runtime, std::move(value), Truthy(bound[2]), &key)) {
      return false;
    }
    keyed.emplace_back(std::move(key), item);
  }
  if (!SortKeyed(runtime, &keyed, false)) return false;
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> members;
    const size_t begin = i;
    bool same = true;
    while (i < keyed.size()) {
      if (!runtime.Equal(keyed[begin].first, keyed[i].first, &same)) return false;
      if (!same) break;
      members.push_back(keyed[i++].second);
    }
    Value grouper, list, group;
    if (!value_of(keyed[begin].second, &grouper) ||
        !runtime.MakeSequence(SequenceType::kList, std::move(members), &list) ||
        !runtime.MakeSequence(SequenceType::kGroup, {grouper, list}, &group)) {
      return false;
    }
    groups.push_back(std::move(group));
  }
  return runtime.MakeSequence(SequenceType::kList, std::move(groups), out);
}

bool FilterBatch(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"linecount", Parameter::kRequired}, {"fill_with"}};
  Value bound[2], items;
  int64_t size;
  if (!Bind(runtime, "batch", args, kParameters, bound) || !Iterate(runtime, self, &items) ||
      !ReadInt(runtime, "linecount", bound[0], 0, &size)) {
    return false;
  }
  if (size < 1 || size > 100'000) return runtime.Fail("batch() needs a size of 1 to 100000");
  std::vector<Value> batches;
  const auto& list = items.sequence().items;
  const auto count = static_cast<size_t>(size);
  for (size_t i = 0; i < list.size(); i += count) {
    std::vector<Value> batch(
        list.begin() + static_cast<ptrdiff_t>(i),
        list.begin() + static_cast<ptrdiff_t>(std::min(i + count, list.size())));
    if (!bound[1].is_undefined() && !bound[1].is_none()) batch.resize(count, bound[1]);
    Value value;
    if (!runtime.MakeSequence(SequenceType::kList, std::move(batch), &value)) return false;
    batches.push_back(std::move(value));
  }
  return runtime.MakeSequence(SequenceType::kIterator, std::move(batches), out);
}

bool FilterSlice(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"slices", Parameter::kRequired}, {"fill_with"}};
  Value bound[2], items;
  int64_t slices;
  if (!Bind(runtime, "slice", args, kParameters, bound) || !Iterate(runtime, self, &items) ||
      !ReadInt(runtime, "slices", bound[0], 0, &slices)) {
    return false;
  }
  if (slices < 1 || slices > 100'000) return runtime.Fail("slice() needs 1 to 100000 slices");
  const auto& list = items.sequence().items;
  const size_t count = static_cast<size_t>(slices);
  const size_t each = list.size() / count;
  const size_t extra = list.size() % count;
  std::vector<Value> result;
  auto begin = list.begin();
  for (size_t i = 0; i < count; ++i) {
    const auto end = begin + static_cast<ptrdiff_t>(each + (i < extra ? 1 : 0));
    std::vector<Value> part(begin, end);
    begin = end;
    if (!bound[1].is_undefined() && !bound[1].is_none() && i >= extra) part.push_back(bound[1]);
    Value value;
    if (!runtime.MakeSequence(SequenceType::kList, std::move(part), &value)) return false;
    result.push_back(std::move(value));
  }
  return runtime.MakeSequence(SequenceType::kIterator, std::move(result), out);
}

bool FilterSum(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"attribute"}, {"start"}};
  Value bound[2], items;
  if (!Bind(runtime, "sum", args, kParameters, bound) || !Iterate(runtime, self, &items)) {
    return false;
  }
  Value total = bound[1].is_undefined() ? Value::Int(0) : bound[1];
  for (const Value& item : items.sequence().items) {
    Value value = item, next;
    if (!bound[0].is_undefined() && !bound[0].is_none() &&
        !GetPath(runtime, item, bound[0], &value)) {
      return false;
    }
    if (!runtime.Charge(1) || !Apply(runtime, BinaryOp::kAdd, total, value, &next)) return false;
    total = std::move(next);
  }
  *out = std::move(total);
  return true;
}

bool FilterAttr(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"name", Parameter::kRequired}};
  Value name;
  const MarkedText* text;
  if (!Bind(runtime, "attr", args, kParameters, &name) ||
      !NeedText(runtime, "the attribute name", name, &text)) {
    return false;
  }
  if (self.is_dict()) {  // attributes alone, not items
    if (const Builtin method = FindMethod(self, text->view())) {
      return runtime.MakeFunction(text->bytes(), method, self, out);
    }
    *out = Value::Undefined(Format("'dict object' has no attribute '{}'", text->view()));
    return true;
  }
  return GetAttribute(runtime, self, text->view(), out);
}

// Python's int(text, base); false when the text is not a number.
bool ParseInt(std::string_view text, int64_t base, int64_t* value) {
  const size_t begin = SkipSpace(text, 0);
  text = text.substr(begin, TrimRightEnd(text) - std::min(begin, TrimRightEnd(text)));
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char kind = static_cast<char>(text[1] | 0x20);
    const int64_t named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      base = named;
      text.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  if (text.empty() || text[0] == '-' || base < 2 || base > 36) return false;
  std::string digits;
  if (negative) digits.push_back('-');
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_') continue;
    digits.push_back(text[i]);
  }
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), *value, static_cast<int>(base));
  return error == std::errc() && end == digits.data() + digits.size();
}

// Python's float(text).
bool ParseFloat(std::string_view text, double* value) {
  const size_t begin = SkipSpace(text, 0);
  const size_t end = TrimRightEnd(text);
  if (begin >= end) return false;
  std::string digits;
  for (char c : text.substr(begin, end - begin)) {
    if (c != '_') digits.push_back(c);
  }
  if (!digits.empty() && digits[0] == '+') digits.erase(0, 1);
  if (digits.empty() || digits[0] == '+' || digits.find_first_of("xX(") != std::string::npos) {
    return false;
  }
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
  return error == std::errc() && stop == digits.data() + digits.size();
}

bool FloatToInt(double value, int64_t* out) {
  if (!(value > -9.2e18 && value < 9.2e18)) return false;
  *out = static_cast<int64_t>(value);
  return true;
}

bool FilterInt(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"default"}, {"base"}};
  Value bound[2];
  int64_t base, value = 0;
  if (!Bind(runtime, "int", args, kParameters, bound) ||
      !ReadInt(runtime, "base", bound[1], 10, &base)) {
    return false;
  }
  if (self.is_undefined()) return runtime.Fail(std::string(self.why()));
  double real = 0;
  const bool ok = self.is_integral() ? (value = self.integer(), true)
                  : self.is_float()  ? FloatToInt(self.real(), &value)
                  : self.is_string()
                      ? ParseInt(self.str(), base, &value) ||
                            (ParseFloat(self.str(), &real) && FloatToInt(real, &value))
                      : false;
  *out = ok ? Value::Int(value) : bound[0].is_undefined() ? Value::Int(0) : bound[0];
  return true;
}

bool FilterFloat(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"default"}};
  Value fallback;
  if (!Bind(runtime, "float", args, kParameters, &fallback)) return false;
  if (self.is_undefined()) return runtime.Fail(std::string(self.why()));
  double value = 0;
  const bool ok = self.is_number() ? (value = self.real(), true)
                                   : self.is_string() && ParseFloat(self.str(), &value);
  *out = ok ? Value::Float(value) : fallback.is_undefined() ? Value::Float(0.0) : fallback;
  return true;
}

bool FilterAbs(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  if (!Bind(runtime, "abs", args, {}, nullptr)) return false;
  if (self.is_integral() ? self.integer() < 0 : self.is_float() && std::signbit(self.real())) {
    return Negate(runtime, self, out);
  }
  if (!self.is_number()) return Negate(runtime, self, out);
  *out = self.is_bool() ? Value::Int(self.integer()) : self;
  return true;
}

bool FilterRound(Runtime& runtime, const Value& self, CallArgs& args, Value* out) {
  constexpr Parameter kParameters[] = {{"precision"}, {"method"}};
  Value bound[2];
  int64_t precision;
  if (!Bind(runtime, "round", args, kParameters, bound) ||
      !ReadInt(runtime, "precision", bound[0], 0, &precision)) {
    return false;
  }
  if (self.is_undefined()) return runtime.Fail(std::string(self.why()));
  if (!self.is_number()) return runtime.Fail(Format("cannot round '{}'", TypeName(self)));
  const std::string_view method = bound[1].is_string() ? bound[1].str() : "common";
  if (method == "common" && self.is_integral() && precision >= 0) {
    *out = Value::Int(self.integer());
    return true;
  }
  const double value = self.real();
  if (method == "common" && precision >= 0) {
    char buffer[512];  // printf rounds the exact binary value, ties to even
    std::snprintf(buffer, sizeof buffer, "%.*f",
                  static_cast<int>(std::min<int64_t>(precision, 100)), value);
    *out = Value::Float(std::strtod(buffer, nullptr));
    return true;
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil" || method == "floor") {
    const double scaled = value * scale;
    *out = Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
    return true;
  }
  if (method != "common") return runtime.Fail("method must be common, ceil or floor");
  const double rounded = std::nearbyint(value * scale) / scale;
  int64_t integer = 0;
  *out = self.is_integral() && FloatToInt(rounded, &integer) ? Value::Int(integer)
                                                             : Value::Float(rounded);
  return true;
}

constexpr BuiltinEntry kFilters[] = {
    {"length", FilterLength},
    {"count", FilterLength},
    {"default", FilterDefault},
    {"d", FilterDefault},
    {"first", FilterFirst},
    {"last", FilterLast},
    {"list", FilterList},
    {"reverse", FilterReverse},
    {"join", FilterJoin},
    {"items", FilterItems},
    {"sort", FilterSort},
    {"dictsort", FilterDictSort},
    {"unique", FilterUnique},
    {"min", FilterExtreme<false>},
    {"max", FilterExtreme<true>},
    {"map", FilterMap},
    {"select", FilterSelect<true, false>},
    {"reject", FilterSelect<false, false>},
    {"selectattr", FilterSelect<true, true>},
    {"rejectattr", FilterSelect<false, true>},
    {"groupby", FilterGroupBy},
    {"batch", FilterBatch},
    {"slice", FilterSlice},
    {"sum", FilterSum},
    {"attr", FilterAttr},
    {"int", FilterInt},
    {"float", FilterFloat},
    {"abs", FilterAbs},
    {"round", FilterRound},
};

}  // namespace

std::span<const BuiltinEntry> SequenceFilters() { return kFilters; }

}  // namespace deepinfer::jinja
