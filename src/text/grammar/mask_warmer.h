// Makes masks before a request needs them: those inside strings with patterns, which take longest.
// Pure but for the vocabulary's cache; any thread.
#pragma once

#include "text/grammar/compiled_grammar.h"
#include "text/grammar/grammar_vocabulary.h"

namespace deepinfer {

// Bounded: a few states of each pattern, nearest to its start.
void WarmMasks(const CompiledGrammar& grammar, const GrammarVocabulary& vocabulary);

}  // namespace deepinfer
