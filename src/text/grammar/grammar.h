// Output that keeps to a grammar: the header that users of this folder include.
//   GrammarVocabulary  one per tokenizer: its bytes as a trie, and the cache of masks (shared)
//   GrammarBuilder     compiles sources on its own threads; tickets are polled (shared)
//   CompiledGrammar    the immutable result, shared by requests and engines
//   GrammarMatcher     the state of one request: FillMask, Accept, Rollback (its owner's thread)
#pragma once

#include "text/grammar/compiled_grammar.h"
#include "text/grammar/grammar_builder.h"
#include "text/grammar/grammar_matcher.h"
#include "text/grammar/grammar_source.h"
#include "text/grammar/grammar_vocabulary.h"
