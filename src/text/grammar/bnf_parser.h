// Grammars in Backus-Naur form into rules: GBNF as llama.cpp reads it (name ::= alternatives,
// "text", [class], ., * + ? {m,n}, # comments) and the EBNF dialects around it (= or : as the
// sign, ';' ends, 'text', {repeated}, [optional] where GBNF would have a class is read as a class).
// Pure function, any thread; depth and size are bounded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/grammar/syntax_tree.h"

namespace deepinfer {

struct BnfGrammar {
  SyntaxTree tree;
  std::vector<std::string> names;  // of rule i; a kCall's callee is such an i
  std::vector<SyntaxId> rules;
  size_t root = 0;
};

Result<BnfGrammar> ParseBnf(std::string_view text, int depth_max);

}  // namespace deepinfer
