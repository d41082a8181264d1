// Grammars in Backus-Naur form into rules: GBNF as llama.cpp reads it (name ::= alternatives,
// "text", [class], ., * + ? {m,n}, # comments) and the EBNF dialects around it (= or : as the
// sign, ';' ends, 'text', {repeated}, [optional] where GBNF would have a class is read as a class).
// Atoms of ours: %json{...} is a value of that JSON Schema, %until"x" or %until("x" "y") any text
// without x or y in it, %grammar{"regex": ...} (or choice, grammar, structural_tag) what that says.
// Pure function, any thread; depth and size are bounded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/grammar/syntax_tree.h"

namespace deepinfer {

// What a rule is when it is no expression.
struct BnfSpecial {
  enum class Kind : uint8_t { kNone, kSchema, kUntil, kGrammar } kind = Kind::kNone;
  std::string text;               // the schema or the grammar
  std::vector<std::string> ends;  // of kUntil
};

struct BnfGrammar {
  SyntaxTree tree;
  std::vector<std::string> names;  // of rule i; a kCall's callee is such an i
  std::vector<SyntaxId> rules;
  std::vector<BnfSpecial> specials;  // of rule i; such a rule has no name of the source
  size_t root = 0;
};

Result<BnfGrammar> ParseBnf(std::string_view text, int depth_max);

}  // namespace deepinfer
