#include "text/grammar/schema_expander.h"

#include <algorithm>

#include "base/format.h"

namespace deepinfer {

namespace {

constexpr size_t kBranchesMax = 2048;
constexpr int kEmptyDepth = 4;
constexpr int kNestedMax = 12;

}  // namespace

Result<std::vector<SchemaBranch>> SchemaExpander::Expand(const std::vector<AppliedSchema>& all) {
  std::vector<SchemaBranch> done;
  if (++depth_ > kNestedMax) {
    --depth_;
    return Invalid("JSON Schema: alternatives nest too deeply to be told apart");
  }
  std::vector<State> states(1);
  for (const AppliedSchema& applied : all) states[0].todo.push_back({applied, 0});
  Status status;
  while (!states.empty() && status.ok()) {
    State state = std::move(states.back());
    states.pop_back();
    status = Process(&state);
    if (!status.ok() || state.branch.types == 0) continue;
    if (!budget_->Spend(16)) status = WorkBudget::Error();
    if (state.choices.empty()) {
      Result<bool> empty = PlainlyEmpty(&state.branch, 0);
      if (!empty.ok()) {
        status = empty.status();
      } else if (!*empty) {
        done.push_back(std::move(state.branch));
      }
      if (done.size() > kBranchesMax) {
        status = Invalid(
            Format("JSON Schema: its alternatives combine in more than {} ways", kBranchesMax));
      }
      continue;
    }
    // The choice with the fewest options first.
    const auto least =
        std::min_element(state.choices.begin(), state.choices.end(),
                         [](const Choice& a, const Choice& b) { return a.size() < b.size(); });
    const Choice choice = std::move(*least);
    state.choices.erase(least);
    for (size_t i = choice.size(); i-- > 0;) {
      State next = state;
      next.todo.insert(next.todo.end(), choice[i].todo.begin(), choice[i].todo.end());
      for (const Atom& atom : choice[i].atoms) atom(&next.branch);
      states.push_back(std::move(next));
    }
    if (!budget_->Spend(static_cast<int64_t>(32 * choice.size()))) status = WorkBudget::Error();
  }
  --depth_;
  if (!status.ok()) return status;
  return done;
}

Status SchemaExpander::Process(State* state) {
  while (!state->todo.empty() && state->branch.types != 0) {
    const Todo next = state->todo.back();
    state->todo.pop_back();
    if (!state->seen.insert(next).second) continue;
    const AppliedSchema opposite{next.applied.schema, !next.applied.negated};
    const auto same = state->seen.lower_bound({opposite, 0});
    if (same != state->seen.end() && same->applied == opposite) {
      state->branch.types = 0;  // no value both matches and violates it
      return {};
    }
    if (!budget_->Spend(4)) return WorkBudget::Error();
    const Json& schema = *next.applied.schema;
    if (schema.is_bool()) {
      if (*schema.AsBool() == next.applied.negated) state->branch.types = 0;
      continue;
    }
    if (!schema.is_object()) {
      return Invalid(Format("JSON Schema: a schema is an object or true or false; {} is neither",
                            document_->PointerOf(schema)));
    }
    if (next.applied.negated) {
      DI_TRY(Negate(schema, state));
    } else {
      DI_TRY(Apply(schema, next.scopes, state));
    }
  }
  return {};
}

Status SchemaExpander::Refuse(const Json& schema) {
  if (schema.Find("$dynamicRef") != nullptr || schema.Find("$recursiveRef") != nullptr) {
    const bool dynamic = schema.Find("$dynamicRef") != nullptr;
    return document_->Unsupported(schema, dynamic ? "$dynamicRef" : "$recursiveRef",
                                  "its target is known only during validation");
  }
  return {};
}

Status SchemaExpander::Apply(const Json& schema, uint32_t scopes, State* state) {
  DI_TRY(Refuse(schema));
  if (const Json* ref = schema.Find("$ref"); ref != nullptr && ref->is_string()) {
    DI_ASSIGN(const Json* target, document_->Resolve(schema, ref->string()));
    if (document_->before_2019()) {
      state->todo.push_back({{target, false}, scopes});
      return {};
    }
    DI_ASSIGN(const uint32_t scope, Scope(schema));
    state->todo.push_back({{target, false}, scopes | scope});
  }
  SchemaBranch* branch = &state->branch;
  DI_ASSIGN(const uint32_t own, Scope(schema));
  scopes |= own;
  if (const Json* type = schema.Find("type"); type != nullptr) {
    DI_TRY(ApplyType(schema, *type, branch));
  }
  if (const Json* value = schema.Find("const"); value != nullptr) {
    DI_TRY(ApplyValues(schema, {value}, state));
  }
  if (const Json* values = schema.Find("enum"); values != nullptr && values->is_array()) {
    std::vector<const Json*> list;
    for (const Json& value : values->items()) list.push_back(&value);
    DI_TRY(ApplyValues(schema, list, state));
  }
  if ((branch->types & JsonTypes::kString) != 0) DI_TRY(ApplyString(schema, branch));
  if ((branch->types & JsonTypes::kNumber) != 0) DI_TRY(ApplyNumber(schema, branch));
  if ((branch->types & JsonTypes::kArray) != 0) DI_TRY(ApplyArray(schema, scopes, branch));
  if ((branch->types & JsonTypes::kObject) != 0) DI_TRY(ApplyObject(schema, scopes, branch));
  DI_TRY(ApplyLogic(schema, scopes, state));
  DI_TRY(ApplyConditions(schema, scopes, state));
  return ApplyDependencies(schema, scopes, state);
}

// A bit for schemas with unevaluatedProperties or unevaluatedItems, 0 for others.
Result<uint32_t> SchemaExpander::Scope(const Json& schema) {
  const bool properties = schema.Find("unevaluatedProperties") != nullptr;
  if (document_->before_2019() || (!properties && schema.Find("unevaluatedItems") == nullptr)) {
    return uint32_t{0};
  }
  const auto [entry, is_new] = scopes_.try_emplace(&schema, 0);
  if (is_new) {
    if (scopes_.size() > 32) {
      return document_->Unsupported(schema,
                                    properties ? "unevaluatedProperties" : "unevaluatedItems",
                                    "more than 32 schemas of a document use it");
    }
    entry->second = uint32_t{1} << (scopes_.size() - 1);
  }
  return entry->second;
}

Status SchemaExpander::ApplyLogic(const Json& schema, uint32_t scopes, State* state) {
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const Json* list = schema.Find(keyword);
    if (list == nullptr) continue;
    if (!list->is_array()) {
      return document_->Unsupported(schema, keyword, "it must be a list of schemas");
    }
    if (keyword[1] == 'l') {
      for (const Json& part : list->items()) state->todo.push_back({{&part, false}, scopes});
    } else if (keyword[0] == 'a') {
      DI_TRY(ApplyAnyOf(schema, *list, scopes, state));
    } else {
      DI_TRY(ApplyOneOf(schema, *list, scopes, state));
    }
  }
  if (const Json* inner = schema.Find("not"); inner != nullptr) {
    state->todo.push_back({{inner, true}, 0});
  }
  return {};
}

Status SchemaExpander::ApplyAnyOf(const Json& schema, const Json& list, uint32_t scopes,
                                  State* state) {
  const std::vector<Json>& parts = list.items();
  Choice choice;
  if (scopes == 0) {
    for (const Json& part : parts) choice.push_back({{{{&part, false}, 0}}, {}});
  } else {
    // Every part that matches counts as having seen properties: all sets of parts.
    if (parts.size() > 6) {
      return document_->Unsupported(schema, "anyOf",
                                    "more than 6 parts beside an unevaluated keyword");
    }
    for (uint32_t set = 1; set < (uint32_t{1} << parts.size()); ++set) {
      Option option;
      for (size_t i = 0; i < parts.size(); ++i) {
        if ((set >> i & 1) != 0) option.todo.push_back({{&parts[i], false}, scopes});
      }
      choice.push_back(std::move(option));
    }
  }
  state->choices.push_back(std::move(choice));
  return {};
}

Status SchemaExpander::ApplyOneOf(const Json&, const Json& list, uint32_t scopes, State* state) {
  const std::vector<Json>& parts = list.items();
  Choice choice(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    choice[i].todo.push_back({{&parts[i], false}, scopes});
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = i + 1; j < parts.size(); ++j) {
      DI_ASSIGN(const bool disjoint, Disjoint({&parts[i], false}, {&parts[j], false}));
      if (disjoint) continue;
      choice[i].todo.push_back({{&parts[j], true}, 0});
      choice[j].todo.push_back({{&parts[i], true}, 0});
    }
  }
  state->choices.push_back(std::move(choice));
  return {};
}

Status SchemaExpander::ApplyConditions(const Json& schema, uint32_t scopes, State* state) {
  const Json* condition = schema.Find("if");
  if (condition == nullptr || document_->dialect() < SchemaDocument::Dialect::kDraft7) return {};
  const Json* then_part = schema.Find("then");
  const Json* else_part = schema.Find("else");
  if (then_part == nullptr && else_part == nullptr && scopes == 0) return {};
  Option holds;
  holds.todo.push_back({{condition, false}, scopes});
  if (then_part != nullptr) holds.todo.push_back({{then_part, false}, scopes});
  Option fails;
  fails.todo.push_back({{condition, true}, 0});
  if (else_part != nullptr) fails.todo.push_back({{else_part, false}, scopes});
  state->choices.push_back({std::move(holds), std::move(fails)});
  return {};
}

Status SchemaExpander::ApplyDependencies(const Json& schema, uint32_t scopes, State* state) {
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* map = schema.Find(keyword);
    if (map == nullptr || !map->is_object()) continue;
    for (const auto& [key, value] : map->members()) {
      Option absent;
      absent.atoms.push_back([key = key](SchemaBranch* branch) {
        branch->property_extras.push_back({key, {&SchemaDocument::False(), false}});
      });
      // A value that is no object satisfies it as well: absence binds objects only.
      Option present;
      std::vector<std::string> also = {key};
      if (value.is_array() || value.is_string()) {
        for (const Json& name : value.items()) also.push_back(name.string());
        if (value.is_string()) also.push_back(value.string());
      } else {
        present.todo.push_back({{&value, false}, scopes});
      }
      present.atoms.push_back([also](SchemaBranch* branch) {
        branch->types &= JsonTypes::kObject;
        branch->required.insert(also.begin(), also.end());
      });
      state->choices.push_back({std::move(absent), std::move(present)});
    }
  }
  return {};
}

Result<bool> SchemaExpander::Disjoint(const AppliedSchema& a, const AppliedSchema& b) {
  Result<std::vector<SchemaBranch>> both = Expand({a, b});
  if (!both.ok()) {
    if (budget_->spent()) return both.status();
    return false;  // what it could not tell apart, negation has to
  }
  return both->empty();
}

Result<bool> SchemaExpander::PlainlyEmpty(SchemaBranch* branch, int depth) {
  using T = JsonTypes;
  if ((branch->types & T::kNumber) != 0) {
    const Result<NumberRule> rule = NumberRule::Create(branch->number, NumberRule::Spelling::kAny);
    if (rule.ok() && rule->kind() == NumberRule::Kind::kNothing) branch->types &= ~T::kNumber;
  }
  if ((branch->types & T::kString) != 0) {
    StringConstraints& string = branch->string;
    if (string.allowed) {
      std::erase_if(*string.allowed, [&](const std::string& text) {
        return std::find(string.excluded.begin(), string.excluded.end(), text) !=
               string.excluded.end();
      });
    }
    if (string.length_min > string.length_max || (string.allowed && string.allowed->empty())) {
      branch->types &= ~T::kString;
    }
  }
  if (branch->items_min > branch->items_max) branch->types &= ~T::kArray;
  if (branch->properties_min > branch->properties_max ||
      branch->required.size() > branch->properties_max) {
    branch->types &= ~T::kObject;
  }
  if ((branch->types & T::kObject) != 0 && depth_ <= kEmptyDepth) {
    for (const std::string& key : branch->required) {
      // Patterns are left out: fewer constraints, so "empty" stays certain.
      const std::vector<AppliedSchema> value =
          OfProperty(*branch, key, [](const std::string&) { return false; });
      bool known_patterns = false;
      for (const ObjectGroup& group : branch->objects) {
        known_patterns = known_patterns || group.patterns != nullptr;
      }
      if (value.empty() || known_patterns) continue;
      const Result<std::vector<SchemaBranch>> ways = Expand(value);
      if (!ways.ok() && budget_->spent()) return ways.status();
      if (ways.ok() && ways->empty()) {
        branch->types &= ~T::kObject;
        break;
      }
    }
  }
  (void)depth;
  return branch->types == 0;
}

std::vector<AppliedSchema> SchemaExpander::OfProperty(
    const SchemaBranch& branch, const std::string& key,
    const std::function<bool(const std::string& pattern)>& matches) const {
  std::vector<AppliedSchema> out;
  uint32_t seen_by = 0;  // scopes in which the property counts as evaluated
  for (const ObjectGroup& group : branch.objects) {
    bool known = false;
    if (group.properties != nullptr) {
      if (const Json* value = group.properties->Find(key); value != nullptr) {
        out.push_back({value, false});
        known = true;
      }
    }
    if (group.patterns != nullptr) {
      for (const auto& [pattern, value] : group.patterns->members()) {
        if (!matches(pattern)) continue;
        out.push_back({&value, false});
        known = true;
      }
    }
    if (!known && group.additional != nullptr) {
      out.push_back({group.additional, false});
      known = true;
    }
    if (known) seen_by |= group.scopes;
  }
  // An inner unevaluatedProperties sees for the outer ones as well; inner ones come later.
  for (size_t i = branch.unevaluated_properties.size(); i-- > 0;) {
    const UnevaluatedRule& rule = branch.unevaluated_properties[i];
    if ((seen_by & rule.scope) != 0) continue;
    out.push_back({rule.schema, false});
    seen_by |= rule.outer;
  }
  for (const auto& [extra, applied] : branch.property_extras) {
    if (extra == key) out.push_back(applied);
  }
  return out;
}

std::vector<AppliedSchema> SchemaExpander::OfItem(const SchemaBranch& branch,
                                                  uint32_t index) const {
  std::vector<AppliedSchema> out;
  uint32_t seen_by = 0;
  for (const ArrayGroup& group : branch.arrays) {
    const Json* schema = index < group.prefix.size() ? group.prefix[index] : group.items;
    if (schema == nullptr) continue;
    out.push_back({schema, false});
    seen_by |= group.scopes;
  }
  for (size_t i = branch.unevaluated_items.size(); i-- > 0;) {
    const UnevaluatedRule& rule = branch.unevaluated_items[i];
    if ((seen_by & rule.scope) != 0) continue;
    out.push_back({rule.schema, false});
    seen_by |= rule.outer;
  }
  for (const auto& [at, applied] : branch.item_extras) {
    if (at == index) out.push_back(applied);
  }
  return out;
}

}  // namespace deepinfer
