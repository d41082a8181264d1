// The tables that a grammar compiles to and the machine runs on. Written by the compilers, then
// immutable inside a CompiledGrammar; safe on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/grammar/code_point_dfa.h"
#include "text/grammar/grammar_source.h"
#include "text/grammar/number_rule.h"
#include "text/grammar/schema_branch.h"

namespace deepinfer {

struct StringPlan {
  uint32_t automaton = 0;  // over the decoded code points
  uint32_t length_min = 0;
  uint32_t length_max = kUnbounded;
  uint32_t unlimited = 0;  // the plan of the same automaton without a maximum
};

struct NumberPlan {
  NumberRule rule;
  uint32_t automaton = 0;  // of kListed: the texts
};

struct ArrayPlan {
  // The value of item i: prefix[i], or `rest`. Ids of values.
  std::vector<uint32_t> prefix;
  uint32_t rest = 0;
  uint32_t items_min = 0;
  uint32_t items_max = kUnbounded;
  // `contains`: an item counts when read as a match; with a maximum the others must be misses.
  bool counted = false;
  uint32_t count_min = 0;
  uint32_t count_max = kUnbounded;
  std::vector<uint32_t> prefix_match, prefix_miss;
  uint32_t rest_match = 0;
  uint32_t rest_miss = 0;
};

struct ObjectPlan {
  static constexpr uint32_t kUntracked = UINT32_MAX;
  struct KeyLabel {
    uint32_t tracked = kUntracked;
    uint32_t value = 0;
  };
  uint32_t automaton = 0;  // over keys; label i + 1 is labels[i]
  std::vector<KeyLabel> labels;
  uint32_t num_tracked = 0;  // keys named by the schema: each at most once
  uint32_t words = 0;        // of 64 bits, for a set of tracked keys
  std::vector<uint64_t> required;
  std::vector<uint64_t> reach;       // [state][word]: tracked keys that can still come about
  std::vector<uint8_t> reach_other;  // [state]: so can another key
  bool always_other = false;         // from every state
  bool has_other = false;            // keys that the schema does not name exist
  uint32_t properties_min = 0;
  uint32_t properties_max = kUnbounded;
};

struct ValueAlternative {
  uint8_t type = 0;   // one bit of JsonTypes
  uint32_t plan = 0;  // index in the table of its type
};

struct ValueNode {
  std::vector<ValueAlternative> alternatives;
  uint8_t types = 0;
};

// What a rule's automaton may call, and the start of the grammar.
struct GrammarCallee {
  enum class Kind : uint8_t { kRule, kRepeat, kValue } kind = Kind::kRule;
  uint32_t index = 0;  // an automaton, a value; of kRepeat the callee that is repeated
  uint32_t min = 0;    // of kRepeat
  uint32_t max = 0;
};

struct GrammarProgram {
  GrammarOptions::Whitespace whitespace = GrammarOptions::Whitespace::kBounded;
  int depth_max = 128;
  // Characters that need no escape may have one also in texts that are tied down (names, choices,
  // patterns); free texts always may.
  bool escapes_anywhere = false;
  uint64_t identity = 0;  // of the source and the options
  std::vector<CodePointDfa> automata;
  std::vector<StringPlan> strings;
  std::vector<NumberPlan> numbers;
  std::vector<ArrayPlan> arrays;
  std::vector<ObjectPlan> objects;
  std::vector<ValueNode> values;
  std::vector<GrammarCallee> callees;
  uint32_t start = 0;  // a callee

  size_t bytes() const;
};

}  // namespace deepinfer
