// How a schema is violated: each keyword gives ways to break it, one of which must be taken.
#include <algorithm>

#include "base/format.h"
#include "text/grammar/schema_expander.h"
#include "text/grammar/string_formats.h"

namespace deepinfer {

namespace {

bool Trivial(const Json& schema) {
  return (schema.is_bool() && *schema.AsBool()) || (schema.is_object() && schema.members().empty());
}

}  // namespace

Status SchemaExpander::Negate(const Json& schema, State* state) {
  DI_TRY(Refuse(schema));
  Choice ways;
  if (const Json* ref = schema.Find("$ref"); ref != nullptr && ref->is_string()) {
    DI_ASSIGN(const Json* target, document_->Resolve(schema, ref->string()));
    ways.push_back({{{{target, true}, 0}}, {}});
    if (document_->before_2019()) {
      state->choices.push_back(std::move(ways));
      return {};
    }
  }
  for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems"}) {
    const Json* value = schema.Find(keyword);
    if (value != nullptr && !document_->before_2019() && !Trivial(*value)) {
      return document_->Unsupported(schema, keyword, "it stands below a negation");
    }
  }
  if (const Json* type = schema.Find("type"); type != nullptr) {
    bool integer = false;
    DI_ASSIGN(const uint8_t bits, TypeBits(schema, *type, &integer));
    ways.push_back({{}, {[bits](SchemaBranch* branch) {
                      branch->types = static_cast<uint8_t>(branch->types & ~bits);
                    }}});
    if (integer) {
      ways.push_back({{}, {[](SchemaBranch* branch) {
                        branch->types &= JsonTypes::kNumber;
                        branch->number.not_integer = true;
                      }}});
    }
  }
  if (const Json* value = schema.Find("const"); value != nullptr) {
    DI_TRY(NegateValue(*value, &ways));
  }
  DI_TRY(NegateString(schema, &ways));
  DI_TRY(NegateNumber(schema, &ways));
  DI_TRY(NegateArray(schema, &ways));
  DI_TRY(NegateObject(schema, &ways));
  DI_TRY(NegateLogic(schema, state, &ways));
  state->choices.push_back(std::move(ways));  // without ways: nothing violates it
  return {};
}

Status SchemaExpander::NegateValue(const Json& value, Choice* ways) {
  const auto lacks = [](uint8_t type) {
    return Atom([type](SchemaBranch* branch) {
      branch->types = static_cast<uint8_t>(branch->types & ~type);
    });
  };
  switch (value.kind()) {
    case Json::Kind::kNull:
      ways->push_back({{}, {lacks(JsonTypes::kNull)}});
      break;
    case Json::Kind::kBool:
      ways->push_back({{}, {lacks(*value.AsBool() ? JsonTypes::kTrue : JsonTypes::kFalse)}});
      break;
    case Json::Kind::kNumber:
      ways->push_back({{}, {[text = value.string()](SchemaBranch* branch) {
                         branch->number.excluded.push_back(*Decimal::Parse(text));
                       }}});
      break;
    case Json::Kind::kString:
      ways->push_back({{}, {[text = value.string()](SchemaBranch* branch) {
                         branch->string.excluded.push_back(text);
                       }}});
      break;
    default:
      ways->push_back({{{{&document_->SchemaOfConstant(value), true}, 0}}, {}});
  }
  return {};
}

Status SchemaExpander::NegateString(const Json& schema, Choice* ways) {
  const auto way = [&](Atom atom) {
    ways->push_back(
        {{}, {[](SchemaBranch* branch) { branch->types &= JsonTypes::kString; }, std::move(atom)}});
  };
  DI_ASSIGN(const uint32_t min, Count(schema, "minLength", 0));
  if (min > 0) {
    way([min](SchemaBranch* branch) {
      branch->string.length_max = std::min(branch->string.length_max, min - 1);
    });
  }
  DI_ASSIGN(const uint32_t max, Count(schema, "maxLength", kUnbounded));
  if (max != kUnbounded) {
    way([max](SchemaBranch* branch) {
      branch->string.length_min = std::max(branch->string.length_min, max + 1);
    });
  }
  std::vector<StringPattern> patterns;
  if (const Json* pattern = schema.Find("pattern"); pattern != nullptr && pattern->is_string()) {
    patterns.push_back({pattern->string(), true, false, &schema, "pattern"});
  }
  const Json* format = schema.Find("format");
  if (format != nullptr && format->is_string() && FormatBinds()) {
    if (const char* regex = RegexOfFormat(format->string()); regex != nullptr) {
      patterns.push_back({regex, true, true, &schema, "format"});
    }
  }
  for (StringPattern& pattern : patterns) {
    way([pattern](SchemaBranch* branch) { branch->string.patterns.push_back(pattern); });
  }
  return {};
}

Status SchemaExpander::NegateNumber(const Json& schema, Choice* ways) {
  SchemaBranch own;
  DI_TRY(ApplyNumber(schema, &own));
  const auto way = [&](Atom atom) {
    ways->push_back(
        {{}, {[](SchemaBranch* branch) { branch->types &= JsonTypes::kNumber; }, std::move(atom)}});
  };
  if (own.number.min) {
    way([limit = *own.number.min, exclusive = own.number.min_exclusive](SchemaBranch* branch) {
      branch->number.LowerMax(limit, !exclusive);
    });
  }
  if (own.number.max) {
    way([limit = *own.number.max, exclusive = own.number.max_exclusive](SchemaBranch* branch) {
      branch->number.RaiseMin(limit, !exclusive);
    });
  }
  for (const Decimal& step : own.number.multiples) {
    way([step](SchemaBranch* branch) { branch->number.not_multiples.push_back(step); });
  }
  return {};
}

Status SchemaExpander::NegateArray(const Json& schema, Choice* ways) {
  SchemaBranch own;
  DI_TRY(ApplyArray(schema, 0, &own));
  const auto way = [&](Atom atom) {
    ways->push_back(
        {{}, {[](SchemaBranch* branch) { branch->types &= JsonTypes::kArray; }, std::move(atom)}});
  };
  DI_ASSIGN(const uint32_t min, Count(schema, "minItems", 0));
  if (min > 0) {
    way([min](SchemaBranch* branch) { branch->items_max = std::min(branch->items_max, min - 1); });
  }
  if (own.items_max != kUnbounded) {
    way([max = own.items_max](SchemaBranch* branch) {
      branch->items_min = std::max(branch->items_min, max + 1);
    });
  }
  if (own.unique_items) {
    return document_->Unsupported(schema, "uniqueItems", "it stands below a negation");
  }
  for (const ArrayGroup& group : own.arrays) {
    for (uint32_t i = 0; i < group.prefix.size(); ++i) {
      if (Trivial(*group.prefix[i])) continue;
      way([i, item = group.prefix[i]](SchemaBranch* branch) {
        branch->items_min = std::max(branch->items_min, i + 1);
        branch->item_extras.push_back({i, {item, true}});
      });
    }
    if (group.items != nullptr && !Trivial(*group.items)) {
      const auto start = static_cast<uint32_t>(group.prefix.size());
      way([start, items = group.items](SchemaBranch* branch) {
        branch->items_min = std::max(branch->items_min, start + 1);
        branch->counts.push_back({{items, true}, start, 1, kUnbounded});
      });
    }
  }
  for (const ItemCount& count : own.counts) {
    if (count.min > 0) {
      way([count](SchemaBranch* branch) {
        branch->counts.push_back({count.what, 0, 0, count.min - 1});
      });
    }
    if (count.max != kUnbounded) {
      way([count](SchemaBranch* branch) {
        branch->items_min = std::max(branch->items_min, count.max + 1);
        branch->counts.push_back({count.what, 0, count.max + 1, kUnbounded});
      });
    }
  }
  return {};
}

Status SchemaExpander::NegateObject(const Json& schema, Choice* ways) {
  SchemaBranch own;
  DI_TRY(ApplyObject(schema, 0, &own));
  const auto way = [&](Atom atom) {
    ways->push_back(
        {{}, {[](SchemaBranch* branch) { branch->types &= JsonTypes::kObject; }, std::move(atom)}});
  };
  if (own.properties_min > 0) {
    way([min = own.properties_min](SchemaBranch* branch) {
      branch->properties_max = std::min(branch->properties_max, min - 1);
    });
  }
  if (own.properties_max != kUnbounded) {
    way([max = own.properties_max](SchemaBranch* branch) {
      branch->properties_min = std::max(branch->properties_min, max + 1);
    });
  }
  for (const std::string& key : own.required) {
    way([key](SchemaBranch* branch) {
      branch->property_extras.push_back({key, {&SchemaDocument::False(), false}});
    });
  }
  const auto refuse = [&](const char* keyword) {
    return document_->Unsupported(schema, keyword, "it stands below a negation");
  };
  if (!own.names.empty() && !Trivial(*own.names[0].schema)) return refuse("propertyNames");
  for (const ObjectGroup& group : own.objects) {
    if (group.additional != nullptr && !Trivial(*group.additional)) {
      return refuse("additionalProperties");
    }
    if (group.patterns != nullptr) {
      for (const auto& [pattern, value] : group.patterns->members()) {
        if (!Trivial(value)) return refuse("patternProperties");
      }
    }
    if (group.properties == nullptr) continue;
    for (const auto& [key, value] : group.properties->members()) {
      if (Trivial(value)) continue;
      way([key = key, schema_of_value = &value](SchemaBranch* branch) {
        branch->required.insert(key);
        branch->property_extras.push_back({key, {schema_of_value, true}});
      });
    }
  }
  return {};
}

Status SchemaExpander::NegateLogic(const Json& schema, State* state, Choice* ways) {
  const auto all_of = [](const Json& list, bool negated) {
    std::vector<Todo> todo;
    for (const Json& part : list.items()) todo.push_back({{&part, negated}, 0});
    return todo;
  };
  if (const Json* values = schema.Find("enum"); values != nullptr && values->is_array()) {
    Option none;  // all at once, through a state of its own: each value has but one way
    for (const Json& value : values->items()) {
      Choice one;
      DI_TRY(NegateValue(value, &one));
      none.todo.insert(none.todo.end(), one[0].todo.begin(), one[0].todo.end());
      none.atoms.insert(none.atoms.end(), one[0].atoms.begin(), one[0].atoms.end());
    }
    ways->push_back(std::move(none));
  }
  if (const Json* list = schema.Find("allOf"); list != nullptr) {
    for (const Json& part : list->items()) ways->push_back({{{{&part, true}, 0}}, {}});
  }
  if (const Json* list = schema.Find("anyOf"); list != nullptr) {
    ways->push_back({all_of(*list, true), {}});
  }
  if (const Json* list = schema.Find("oneOf"); list != nullptr) {
    ways->push_back({all_of(*list, true), {}});
    for (size_t i = 0; i < list->items().size(); ++i) {
      for (size_t j = i + 1; j < list->items().size(); ++j) {
        ways->push_back({{{{&list->items()[i], false}, 0}, {{&list->items()[j], false}, 0}}, {}});
      }
    }
  }
  if (const Json* inner = schema.Find("not"); inner != nullptr) {
    ways->push_back({{{{inner, false}, 0}}, {}});
  }
  const Json* condition = schema.Find("if");
  if (condition != nullptr && document_->dialect() >= SchemaDocument::Dialect::kDraft7) {
    if (const Json* part = schema.Find("then"); part != nullptr) {
      ways->push_back({{{{condition, false}, 0}, {{part, true}, 0}}, {}});
    }
    if (const Json* part = schema.Find("else"); part != nullptr) {
      ways->push_back({{{{condition, true}, 0}, {{part, true}, 0}}, {}});
    }
  }
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* map = schema.Find(keyword);
    if (map == nullptr || !map->is_object()) continue;
    for (const auto& [key, value] : map->members()) {
      const Atom has_key = [key = key](SchemaBranch* branch) {
        branch->types &= JsonTypes::kObject;
        branch->required.insert(key);
      };
      if (!value.is_array()) {
        ways->push_back({{{{&value, true}, 0}}, {has_key}});
        continue;
      }
      for (const Json& name : value.items()) {
        ways->push_back(
            {{}, {has_key, [absent = name.string()](SchemaBranch* branch) {
                    branch->property_extras.push_back({absent, {&SchemaDocument::False(), false}});
                  }}});
      }
    }
  }
  (void)state;
  return {};
}

}  // namespace deepinfer
