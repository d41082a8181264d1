// Turns a conjunction of schemas into its alternatives: anyOf, oneOf, not, if, enum and so on
// become branches without choices. Used by the schema compiler, on its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar_source.h"
#include "text/grammar/schema_branch.h"
#include "text/grammar/schema_document.h"
#include "text/grammar/work_budget.h"

namespace deepinfer {

class SchemaExpander {
 public:
  SchemaExpander(SchemaDocument* document, const GrammarOptions& options, WorkBudget* budget)
      : document_(document), options_(options), budget_(budget) {}

  // The branches of "all of these hold". Branches that plainly accept nothing are left out.
  Result<std::vector<SchemaBranch>> Expand(const std::vector<AppliedSchema>& all);
  // What the value of property `key`, or of item `index`, must match in this branch.
  std::vector<AppliedSchema> OfProperty(
      const SchemaBranch& branch, const std::string& key,
      const std::function<bool(const std::string& pattern)>& matches) const;
  std::vector<AppliedSchema> OfItem(const SchemaBranch& branch, uint32_t index) const;

 private:
  struct Todo {
    AppliedSchema applied;
    uint32_t scopes = 0;
    auto operator<=>(const Todo&) const = default;
  };
  using Atom = std::function<void(SchemaBranch*)>;
  struct Option {
    std::vector<Todo> todo;
    std::vector<Atom> atoms;
  };
  using Choice = std::vector<Option>;
  struct State {
    SchemaBranch branch;
    std::vector<Todo> todo;
    std::vector<Choice> choices;
    std::set<Todo> seen;
  };

  Status Process(State* state);  // empties `todo`
  Status Apply(const Json& schema, uint32_t scopes, State* state);
  Status ApplyLogic(const Json& schema, uint32_t scopes, State* state);
  Status ApplyConditions(const Json& schema, uint32_t scopes, State* state);
  Status ApplyDependencies(const Json& schema, uint32_t scopes, State* state);
  Status ApplyOneOf(const Json& schema, const Json& list, uint32_t scopes, State* state);
  Status ApplyAnyOf(const Json& schema, const Json& list, uint32_t scopes, State* state);
  Status ApplyType(const Json& schema, const Json& type, SchemaBranch* branch);
  Status ApplyValues(const Json& schema, const std::vector<const Json*>& values, State* state);
  Status ApplyString(const Json& schema, SchemaBranch* branch);
  Status ApplyNumber(const Json& schema, SchemaBranch* branch);
  Status ApplyArray(const Json& schema, uint32_t scopes, SchemaBranch* branch);
  Status ApplyContains(const Json& schema, uint32_t scopes, SchemaBranch* branch);
  Status ApplyObject(const Json& schema, uint32_t scopes, SchemaBranch* branch);
  Status Refuse(const Json& schema);

  // The ways to violate `schema`.
  Status Negate(const Json& schema, State* state);
  Status NegateLogic(const Json& schema, State* state, Choice* ways);
  Status NegateString(const Json& schema, Choice* ways);
  Status NegateNumber(const Json& schema, Choice* ways);
  Status NegateArray(const Json& schema, Choice* ways);
  Status NegateObject(const Json& schema, Choice* ways);
  Status NegateValue(const Json& value, Choice* ways);

  Result<uint32_t> Count(const Json& schema, const char* keyword, uint32_t fallback);
  Result<Decimal> Number(const Json& schema, const char* keyword);
  Result<uint8_t> TypeBits(const Json& schema, const Json& type, bool* integer);
  Result<uint32_t> Scope(const Json& schema);
  // No value matches both, as far as a quick look tells.
  Result<bool> Disjoint(const AppliedSchema& a, const AppliedSchema& b);
  Result<bool> PlainlyEmpty(SchemaBranch* branch, int depth);
  bool FormatBinds() const;

  SchemaDocument* document_;
  const GrammarOptions& options_;
  WorkBudget* budget_;
  std::unordered_map<const Json*, uint32_t> scopes_;
  int depth_ = 0;
};

}  // namespace deepinfer
