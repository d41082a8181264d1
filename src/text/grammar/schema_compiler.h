// JSON Schema to the tables of a program. Used on one thread, for one schema.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/grammar/grammar_program.h"
#include "text/grammar/schema_expander.h"

namespace deepinfer {

class SchemaCompiler {
 public:
  SchemaCompiler(const GrammarOptions& options, WorkBudget* budget, GrammarProgram* program);

  // The value (index in program->values) that `schema` describes. Several schemas may be added to
  // one program, each by a compiler of its own.
  Result<uint32_t> Compile(Json schema);

 private:
  Result<uint32_t> Intern(std::vector<AppliedSchema> all);
  Status CompileNode(uint32_t node);
  Status AddAlternatives(const SchemaBranch& branch, uint32_t node);
  Status AddString(const SchemaBranch& branch, uint32_t node);
  Status AddNumber(const SchemaBranch& branch, uint32_t node);
  Status AddArray(const SchemaBranch& branch, uint32_t node);
  Status AddObject(const SchemaBranch& branch, uint32_t node);
  void AddAlternative(uint32_t node, uint8_t type, uint32_t plan);

  // The automaton of a regular expression; made once.
  Result<uint32_t> AutomatonOf(const StringPattern& pattern);
  Result<uint32_t> AddAutomaton(CodePointDfa automaton);
  // All constraints but the lengths in one automaton.
  Result<uint32_t> AutomatonOf(const StringConstraints& string);
  Result<bool> Matches(const std::string& pattern, const Json& schema, const std::string& text);
  Result<CodePointDfa> NamesAutomaton(const StringConstraints& string);
  Status KeepAllowed(const SchemaBranch& branch, std::vector<std::string>* texts);

  struct KeyParts;
  Status CollectKeys(const SchemaBranch& branch, KeyParts* parts);
  Status BuildKeyAutomaton(const SchemaBranch& branch, KeyParts* parts, ObjectPlan* plan);
  Status PropertyNode(const SchemaBranch& branch, const std::string& key,
                      const std::vector<bool>& matched, const KeyParts& parts, uint32_t* node);

  void FindSatisfiable();
  bool Satisfiable(const ValueAlternative& alternative) const;
  void Prune();
  void PruneArray(ArrayPlan* plan) const;
  void PruneObject(ObjectPlan* plan) const;
  void ComputeReach(ObjectPlan* plan) const;

  const GrammarOptions& options_;
  WorkBudget* budget_;
  GrammarProgram* program_;
  std::unique_ptr<SchemaDocument> document_;
  std::unique_ptr<SchemaExpander> expander_;
  std::map<std::vector<AppliedSchema>, uint32_t> nodes_;
  std::vector<std::vector<AppliedSchema>> pending_;  // of node first_node_ + i
  std::map<std::pair<std::string, bool>, uint32_t> by_regex_;
  uint32_t first_node_ = 0;
  uint32_t first_object_ = 0;
  uint32_t first_array_ = 0;
  std::vector<uint8_t> satisfiable_;  // of nodes
};

}  // namespace deepinfer
