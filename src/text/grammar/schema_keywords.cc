// The keywords of single types, as constraints of a branch.
#include <algorithm>

#include "base/format.h"
#include "text/grammar/schema_expander.h"
#include "text/grammar/string_formats.h"

namespace deepinfer {

namespace {

constexpr int64_t kCountMax = 1'000'000'000;

bool Trivial(const Json& schema) {
  return (schema.is_bool() && *schema.AsBool()) || (schema.is_object() && schema.members().empty());
}

}  // namespace

Result<uint32_t> SchemaExpander::Count(const Json& schema, const char* keyword, uint32_t fallback) {
  const Json* value = schema.Find(keyword);
  if (value == nullptr) return fallback;
  const std::optional<Decimal> count =
      value->is_number() ? Decimal::Parse(value->string()) : std::nullopt;
  if (!count.has_value() || !count->IsInteger() || count->negative()) {
    return document_->Unsupported(schema, keyword, "it must be an integer from 0 up");
  }
  bool exact = false;
  const std::optional<__int128> number = count->Scaled(0, &exact);
  // What lies above is more than any output has.
  return static_cast<uint32_t>(number.has_value() ? std::min<__int128>(*number, kCountMax)
                                                  : kCountMax);
}

Result<Decimal> SchemaExpander::Number(const Json& schema, const char* keyword) {
  const Json* value = schema.Find(keyword);
  const std::optional<Decimal> number =
      value->is_number() ? Decimal::Parse(value->string()) : std::nullopt;
  if (!number) return document_->Unsupported(schema, keyword, "it must be a number");
  return *number;
}

bool SchemaExpander::FormatBinds() const {
  return options_.formats == GrammarOptions::Formats::kAlways ||
         (document_->dialect() != SchemaDocument::Dialect::kDraft2019 &&
          document_->dialect() != SchemaDocument::Dialect::kDraft2020);
}

// Unknown type names are an error; "any" is what draft 3 called everything.
Result<uint8_t> SchemaExpander::TypeBits(const Json& schema, const Json& type, bool* integer) {
  using T = JsonTypes;
  const std::pair<std::string_view, uint8_t> names[] = {
      {"null", T::kNull},     {"boolean", T::kFalse | T::kTrue},
      {"number", T::kNumber}, {"integer", T::kNumber},
      {"string", T::kString}, {"array", T::kArray},
      {"object", T::kObject}, {"any", T::kAll}};
  uint8_t bits = 0;
  bool any_number = false;
  const auto add = [&](const Json& name) {
    for (const auto& [known, mask] : names) {
      if (name.is_string() && name.string() == known) {
        bits |= mask;
        if (known == "integer") *integer = true;
        if (known == "number" || known == "any") any_number = true;
        return true;
      }
    }
    return false;
  };
  bool known = true;
  if (type.is_array()) {
    for (const Json& name : type.items()) known = known && add(name);
  } else {
    known = add(type);
  }
  if (!known) {
    return document_->Unsupported(schema, "type",
                                  Format("{} is not one of null, boolean, integer, number, "
                                         "string, array, object",
                                         type.Dump()));
  }
  if (any_number) *integer = false;
  return bits;
}

Status SchemaExpander::ApplyType(const Json& schema, const Json& type, SchemaBranch* branch) {
  bool integer = false;
  DI_ASSIGN(const uint8_t bits, TypeBits(schema, type, &integer));
  branch->types &= bits;
  if (integer) branch->number.integer = true;
  return {};
}

// enum and const.
Status SchemaExpander::ApplyValues(const Json& schema, const std::vector<const Json*>& values,
                                   State* state) {
  (void)schema;
  uint8_t types = 0;
  std::vector<std::string> strings;
  std::vector<std::string> numbers;
  Choice choice;
  for (const Json* value : values) {
    switch (value->kind()) {
      case Json::Kind::kNull:
        types |= JsonTypes::kNull;
        break;
      case Json::Kind::kBool:
        types |= *value->AsBool() ? JsonTypes::kTrue : JsonTypes::kFalse;
        break;
      case Json::Kind::kNumber:
        types |= JsonTypes::kNumber;
        numbers.push_back(value->string());
        break;
      case Json::Kind::kString:
        types |= JsonTypes::kString;
        strings.push_back(value->string());
        break;
      default:
        choice.push_back({{{{&document_->SchemaOfConstant(*value), false}, 0}}, {}});
    }
  }
  const Atom scalars = [types, strings, numbers](SchemaBranch* branch) {
    branch->types &= types;
    if (branch->string.allowed) {
      std::erase_if(*branch->string.allowed, [&](const std::string& text) {
        return std::find(strings.begin(), strings.end(), text) == strings.end();
      });
    } else {
      branch->string.allowed = strings;
    }
    std::vector<std::string> kept;
    for (const std::string& text : numbers) {
      if (!branch->number.allowed ||
          std::any_of(branch->number.allowed->begin(), branch->number.allowed->end(),
                      [&](const std::string& other) {
                        return Decimal::Parse(other) == Decimal::Parse(text);
                      })) {
        kept.push_back(text);
      }
    }
    branch->number.allowed = std::move(kept);
  };
  if (choice.empty()) {
    scalars(&state->branch);
    return {};
  }
  if (types != 0) choice.push_back({{}, {scalars}});
  state->choices.push_back(std::move(choice));
  return {};
}

Status SchemaExpander::ApplyString(const Json& schema, SchemaBranch* branch) {
  DI_ASSIGN(const uint32_t min, Count(schema, "minLength", 0));
  DI_ASSIGN(const uint32_t max, Count(schema, "maxLength", kUnbounded));
  StringConstraints& string = branch->string;
  string.length_min = std::max(string.length_min, min);
  string.length_max = std::min(string.length_max, max);
  if (const Json* pattern = schema.Find("pattern"); pattern != nullptr) {
    if (!pattern->is_string()) {
      return document_->Unsupported(schema, "pattern", "it must be a string");
    }
    string.patterns.push_back({pattern->string(), false, false, &schema, "pattern"});
  }
  const Json* format = schema.Find("format");
  if (format != nullptr && format->is_string() && FormatBinds()) {
    if (const char* regex = RegexOfFormat(format->string()); regex != nullptr) {
      string.patterns.push_back({regex, false, true, &schema, "format"});
    }
  }
  return {};
}

Status SchemaExpander::ApplyNumber(const Json& schema, SchemaBranch* branch) {
  NumberConstraints& number = branch->number;
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const Json* value = schema.Find(keyword);
    if (value == nullptr || value->is_bool()) continue;  // draft 4: a flag of minimum, maximum
    DI_ASSIGN(const Decimal limit, Number(schema, keyword));
    const std::string_view name = keyword;
    const bool lower = name.ends_with("inimum");
    const Json* flag = schema.Find(lower ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool exclusive =
        name.starts_with("ex") || (flag != nullptr && flag->is_bool() && *flag->AsBool());
    if (lower) {
      number.RaiseMin(limit, exclusive);
    } else {
      number.LowerMax(limit, exclusive);
    }
  }
  const char* step_name = schema.Find("multipleOf") != nullptr ? "multipleOf" : "divisibleBy";
  if (schema.Find(step_name) != nullptr) {
    DI_ASSIGN(const Decimal step, Number(schema, step_name));
    if (step.is_zero() || step.negative() || step.num_digits() > 18) {
      return document_->Unsupported(schema, step_name,
                                    "it must be above 0 and have at most 18 digits");
    }
    number.multiples.push_back(step);
  }
  return {};
}

Status SchemaExpander::ApplyArray(const Json& schema, uint32_t scopes, SchemaBranch* branch) {
  DI_ASSIGN(const uint32_t min, Count(schema, "minItems", 0));
  DI_ASSIGN(const uint32_t max, Count(schema, "maxItems", kUnbounded));
  branch->items_min = std::max(branch->items_min, min);
  branch->items_max = std::min(branch->items_max, max);
  ArrayGroup group;
  group.scopes = scopes;
  const Json* items = schema.Find("items");
  const Json* prefix = schema.Find("prefixItems");
  if (items != nullptr && items->is_array()) {  // before 2020
    prefix = items;
    items = schema.Find("additionalItems");
  }
  if (prefix != nullptr && prefix->is_array()) {
    for (const Json& item : prefix->items()) group.prefix.push_back(&item);
  }
  group.items = items;
  if (!group.prefix.empty() || group.items != nullptr) branch->arrays.push_back(std::move(group));
  if (const Json* rest = schema.Find("unevaluatedItems");
      rest != nullptr && !document_->before_2019()) {
    DI_ASSIGN(const uint32_t own, Scope(schema));
    branch->unevaluated_items.push_back({rest, own, scopes & ~own});
    if (!Trivial(*rest) && !branch->counts.empty()) {
      return document_->Unsupported(schema, "unevaluatedItems", "it stands beside contains");
    }
  }
  if (const Json* unique = schema.Find("uniqueItems");
      unique != nullptr && unique->is_bool() && *unique->AsBool()) {
    branch->unique_items = true;
    branch->unique_schema = &schema;
  }
  return ApplyContains(schema, scopes, branch);
}

Status SchemaExpander::ApplyContains(const Json& schema, uint32_t scopes, SchemaBranch* branch) {
  const Json* contains = schema.Find("contains");
  if (contains == nullptr || document_->dialect() == SchemaDocument::Dialect::kDraft4) return {};
  ItemCount count;
  count.what = {contains, false};
  if (!document_->before_2019()) {
    DI_ASSIGN(count.min, Count(schema, "minContains", 1));
    DI_ASSIGN(count.max, Count(schema, "maxContains", kUnbounded));
  }
  if (scopes != 0) {
    return document_->Unsupported(schema, "contains", "it stands beside an unevaluated keyword");
  }
  if (count.min == 0 && count.max == kUnbounded) return {};
  branch->counts.push_back(count);
  branch->items_min = std::max(branch->items_min, count.min);
  return {};
}

Status SchemaExpander::ApplyObject(const Json& schema, uint32_t scopes, SchemaBranch* branch) {
  DI_ASSIGN(const uint32_t min, Count(schema, "minProperties", 0));
  DI_ASSIGN(const uint32_t max, Count(schema, "maxProperties", kUnbounded));
  branch->properties_min = std::max(branch->properties_min, min);
  branch->properties_max = std::min(branch->properties_max, max);
  ObjectGroup group;
  group.scopes = scopes;
  const auto map = [&](const char* keyword) {
    const Json* value = schema.Find(keyword);
    return value != nullptr && value->is_object() ? value : nullptr;
  };
  group.properties = map("properties");
  group.patterns = map("patternProperties");
  group.additional = schema.Find("additionalProperties");
  if (group.properties != nullptr || group.patterns != nullptr || group.additional != nullptr) {
    branch->objects.push_back(group);
  }
  if (const Json* required = schema.Find("required"); required != nullptr) {
    for (const Json& name : required->items()) {
      if (name.is_string()) branch->required.insert(name.string());
    }
  }
  if (const Json* names = schema.Find("propertyNames");
      names != nullptr && document_->dialect() != SchemaDocument::Dialect::kDraft4) {
    branch->names.push_back({names, false});
  }
  if (const Json* rest = schema.Find("unevaluatedProperties");
      rest != nullptr && !document_->before_2019()) {
    DI_ASSIGN(const uint32_t own, Scope(schema));
    branch->unevaluated_properties.push_back({rest, own, scopes & ~own});
  }
  return {};
}

}  // namespace deepinfer
