#include "text/grammar/mask_warmer.h"

#include <vector>

#include "text/grammar/grammar_machine.h"
#include "text/grammar/grammar_program.h"
#include "text/grammar/mask_walker.h"

namespace deepinfer {

namespace {

constexpr size_t kStatesOfPattern = 24;
constexpr size_t kMasksMax = 128;
constexpr int64_t kSteps = 20'000'000;

// The start and what is reached from it, nearest first.
std::vector<uint32_t> NearestStates(const CodePointDfa& automaton, size_t count) {
  std::vector<uint32_t> states = {CodePointDfa::kStart};
  std::vector<bool> seen(automaton.num_states(), false);
  seen[CodePointDfa::kDead] = seen[CodePointDfa::kStart] = true;
  for (size_t i = 0; i < states.size() && states.size() < count; ++i) {
    for (uint32_t c = 0; c < automaton.num_classes() && states.size() < count; ++c) {
      const uint32_t next = automaton.NextOfClass(states[i], c);
      if (seen[next]) continue;
      seen[next] = true;
      states.push_back(next);
    }
  }
  return states;
}

}  // namespace

void WarmMasks(const CompiledGrammar& grammar, const GrammarVocabulary& vocabulary) {
  const GrammarProgram& program = grammar.program();
  GrammarMachine machine(program);
  MaskWalker walker(&machine, &vocabulary.trie(), &vocabulary.cache());
  walker.GrantSteps(kSteps);
  std::vector<uint64_t> mask(vocabulary.trie().mask_words());
  size_t masks = 0;
  const auto warm = [&](const CodePointDfa& automaton, const GrammarFrame& text) {
    if (automaton.full(CodePointDfa::kStart)) return;
    for (const uint32_t state : NearestStates(automaton, kStatesOfPattern)) {
      if (++masks > kMasksMax) return;
      const GrammarMachine::Mark mark = machine.mark();
      walker.AddMask(machine.MoveText(text, state, 0), mask);
      machine.Release(mark);
    }
  };
  for (uint32_t plan = 0; plan < program.strings.size(); ++plan) {
    GrammarFrame text;
    text.kind = GrammarFrame::Kind::kString;
    text.plan = plan;
    warm(program.automata[program.strings[plan].automaton], text);
  }
  for (uint32_t plan = 0; plan < program.objects.size(); ++plan) {
    const ObjectPlan& object = program.objects[plan];
    if (!object.always_other || object.words > 1) continue;
    GrammarFrame opened;
    opened.kind = GrammarFrame::Kind::kObject;
    opened.plan = plan;
    GrammarFrame text;
    text.kind = GrammarFrame::Kind::kKey;
    text.plan = plan;
    text.parent = machine.MoveText(opened, 0, 0);
    warm(program.automata[object.automaton], text);
  }
}

}  // namespace deepinfer
