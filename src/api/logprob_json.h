// Log-probabilities as the OpenAI dialects and vLLM write them. Everything is appended to JSON text
// directly. Pure functions, any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "text/tokenizer.h"

namespace deepinfer {

enum class TokenNaming { kText, kTokenId };  // kTokenId: "token_id:7"

// How tokens are named. `tokenizer` may be nullptr: then every token is named by its id.
struct TokenNames {
  const Tokenizer* tokenizer = nullptr;
  TokenNaming naming = TokenNaming::kText;
};

// The shortest text of `value`; -9999.0 for what is lower, so that -inf stays JSON.
void AppendLogprob(std::string* out, float value);
// A JSON string; bytes that are no valid UTF-8 show as U+FFFD.
void AppendTokenName(std::string* out, const TokenNames& names, TokenId id);

// {"token", "logprob", "bytes", "top_logprobs"}: an item of choices[].logprobs.content of a chat.
void AppendChatLogprob(std::string* out, const TokenNames& names, const TokenLogprob& item);

// The four parallel lists of the completions dialect, as comma-separated JSON items.
struct CompletionLogprobs {
  std::string tokens, token_logprobs, top_logprobs, text_offset;
  bool empty() const { return tokens.empty(); }
  void Append(const CompletionLogprobs& more);
  // {"tokens": [...], ...}
  void AppendTo(std::string* out) const;
};

enum class SpecialTokens { kShown, kHidden };

// Adds tokens to the lists and counts the code points of their text, where the next offset begins.
class CompletionLogprobWriter {
 public:
  CompletionLogprobWriter(const TokenNames& names, SpecialTokens special)
      : names_(names), special_(special) {}
  // `item` without value: a first prompt token, which has no log-probability.
  void Add(TokenId id, const std::optional<TokenLogprob>& item, CompletionLogprobs* out);

 private:
  const TokenNames names_;
  const SpecialTokens special_;
  int64_t offset_ = 0;
};

// vLLM's prompt_logprobs: [null, {"<id>": {"logprob", "rank", "decoded_token"}, ...}, ...].
void AppendPromptLogprobs(std::string* out, const TokenNames& names,
                          std::span<const std::optional<TokenLogprob>> items);

void AppendIds(std::string* out, std::span<const TokenId> ids);

}  // namespace deepinfer
