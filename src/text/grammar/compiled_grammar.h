// The automaton of one grammar: the product of compiling a GrammarSource, independent of any
// tokenizer. Immutable; shared by the cache of the builder and every request that uses it.
#pragma once

#include <cstddef>
#include <memory>

#include "deepinfer/status.h"
#include "text/grammar/grammar_source.h"
#include "text/grammar/work_budget.h"

namespace deepinfer {

struct GrammarProgram;

// Adds `source` to the tables of `program` and sets its start: for compilers of grammars that hold
// others.
Status CompileSource(const GrammarSource& source, const GrammarOptions& options, WorkBudget* budget,
                     GrammarProgram* program);

class CompiledGrammar {
 public:
  // Compiles on the calling thread. What cannot be enforced is kInvalid: the message names the
  // keyword and its JSON pointer (also param()), or line and column.
  static Result<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source,
                                                                const GrammarOptions& options = {});
  ~CompiledGrammar();

  size_t bytes() const { return bytes_; }  // of memory, for cache limits
  const GrammarProgram& program() const { return *program_; }

 private:
  explicit CompiledGrammar(std::unique_ptr<const GrammarProgram> program);
  std::unique_ptr<const GrammarProgram> program_;
  size_t bytes_ = 0;
};

}  // namespace deepinfer
