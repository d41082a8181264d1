// Grammars of the requests of one engine: the bytes of its tokenizer as a trie and the threads that
// compile, both made when the first request with a grammar comes. Safe on any thread. Destruction
// joins the threads; what `on_ready` uses must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer.h"

namespace deepinfer {

// A grammar that was asked for: the promise of it, and the tokens that it is about.
struct GrammarOrder {
  std::shared_ptr<const GrammarTicket> ticket;          // nullptr: no grammar
  std::shared_ptr<const GrammarVocabulary> vocabulary;  // shared by all orders of an engine

  // Checks out an error that is known by now, with the parameter of the request in it.
  Status ErrorNow(const GrammarSource& source) const;
};

class GrammarCompiler {
 public:
  struct Options {
    int threads = 1;
    int vocab = 0;  // of the model
    std::vector<TokenId> eos_ids;
  };
  // `tokenizer` may be nullptr: then every order is refused.
  GrammarCompiler(const Tokenizer* tokenizer, Options options, const Clock* clock);

  // Never waits for the compilation. `on_ready` is called once when the ticket is ready, on any
  // thread, the caller's included; it must not block.
  Result<GrammarOrder> Order(const GrammarSource& source, std::function<void()> on_ready);

 private:
  Status Prepare();

  const Tokenizer* const tokenizer_;
  const Options options_;
  const Clock* const clock_;
  std::mutex mutex_;  // of making the two
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::unique_ptr<GrammarBuilder> builder_;
};

// The control tokens that grammars may spell: parts of the marks of reasoning and tool calls.
std::vector<TokenId> MarkTokens(const Tokenizer& tokenizer);

}  // namespace deepinfer
