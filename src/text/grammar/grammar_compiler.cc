#include "text/grammar/grammar_compiler.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "text/added_tokens.h"
#include "text/output_machine.h"

namespace deepinfer {

std::vector<TokenId> MarkTokens(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (const AddedToken& added : tokenizer.spec().added) {
    if (added.content.empty() || added.id < 0 || added.id >= tokenizer.vocab_size()) continue;
    const auto holds = [&](std::string_view mark) {
      return mark.find(added.content) != std::string_view::npos;
    };
    const auto profiles = OutputProfiles();
    if (std::any_of(profiles.begin(), profiles.end(), [&](const OutputProfile& profile) {
          return holds(profile.think) || holds(profile.think_end) || holds(profile.mark) ||
                 holds(profile.mark_end);
        })) {
      ids.push_back(added.id);
    }
  }
  return ids;
}

Status GrammarOrder::ErrorNow(const GrammarSource& source) const {
  if (ticket == nullptr || !ticket->ready() || ticket->result().ok()) return {};
  const Status& why = ticket->result().status();
  if (why.code() != StatusCode::kInvalid) return why;
  return Invalid(Format("\"{}\" cannot be enforced: {}", source.param, why.message()))
      .WithParam(source.param);
}

GrammarCompiler::GrammarCompiler(const Tokenizer* tokenizer, Options options, const Clock* clock)
    : tokenizer_(tokenizer), options_(std::move(options)), clock_(clock) {}

Status GrammarCompiler::Prepare() {
  if (builder_ != nullptr) return {};
  GrammarVocabulary::Options vocabulary;
  for (const TokenId id : options_.eos_ids) {
    if (id >= 0 && id < tokenizer_->vocab_size()) vocabulary.stop_ids.push_back(id);
  }
  vocabulary.text_ids = MarkTokens(*tokenizer_);
  vocabulary.mask_width = options_.vocab;
  DI_ASSIGN(vocabulary_, GrammarVocabulary::Create(*tokenizer_, vocabulary));
  GrammarBuilder::Options builder;
  builder.threads = options_.threads;
  builder.vocabulary = vocabulary_;
  builder_ = std::make_unique<GrammarBuilder>(builder, clock_);
  return {};
}

Result<GrammarOrder> GrammarCompiler::Order(const GrammarSource& source,
                                            std::function<void()> on_ready) {
  if (tokenizer_ == nullptr) {
    return Invalid(Format("\"{}\" needs a tokenizer, which this model does not have", source.param))
        .WithParam(source.param);
  }
  {
    const std::lock_guard lock(mutex_);
    DI_TRY(Prepare());
  }
  GrammarOrder order;
  order.vocabulary = vocabulary_;
  order.ticket = builder_->Submit(source, std::move(on_ready));
  return order;
}

}  // namespace deepinfer
