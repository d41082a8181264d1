// What a user asks and what comes back: plain values that cross every boundary.
// A Request is immutable once submitted; an OutputDelta is owned by the callee that receives it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer {

using TokenId = int32_t;
using RequestId = uint64_t;

// What the text of a sample must look like (docs/grammar.md).
struct GrammarSource {
  enum class Kind {
    kJsonSchema,     // `text` is a JSON Schema (an object or true/false)
    kJsonObject,     // any JSON object; `text` is not read
    kRegex,          // `text` is an ECMA-262 regular expression; the whole output matches it
    kBnf,            // `text` is GBNF or EBNF with a rule named "root"
    kChoice,         // `text` is a JSON list of strings; the output is one of them
    kStructuralTag,  // `text` is {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;
  std::string param = "grammar";  // what the request calls it, for errors

  bool operator==(const GrammarSource&) const = default;
};

// A bound on thinking that is kept: after `tokens` output tokens between the marks `end` follows,
// whatever the model says.
struct ThinkingBudget {
  int tokens = 0;
  TokenId begin = -1;        // the first such output token begins it; -1: the prompt has begun it
  std::vector<TokenId> end;  // at least one
};

// Names, meanings and defaults of vLLM's SamplingParams. Validated by ValidateSampling
// (src/engine/sampling_check.h) against the model before a request is queued.
struct SamplingParams {
  int n = 1;                          // samples per prompt, 1..128
  float temperature = 1.0F;           // 0..2; below 1e-5 greedy
  float top_p = 1.0F;                 // (0, 1]
  int top_k = 0;                      // 0 or -1: all
  float min_p = 0.0F;                 // [0, 1]
  float presence_penalty = 0.0F;      // [-2, 2], output tokens only
  float frequency_penalty = 0.0F;     // [-2, 2], output tokens only
  float repetition_penalty = 1.0F;    // > 0, prompt and output tokens
  std::optional<int64_t> seed;        // unset: one is drawn at admission
  std::vector<std::string> stop;      // stop strings; the earliest match ends the sample
  std::vector<TokenId> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  std::optional<int> max_tokens = 16;  // unset: up to the context length
  int min_tokens = 0;                  // EOS and stop ids are masked before this many tokens
  std::optional<int> logprobs;         // top-k log-probabilities per token; -1: whole vocabulary
  std::optional<int> prompt_logprobs;  // same for prompt tokens
  bool echo = false;                   // return the prompt before the completion
  bool detokenize = true;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  std::vector<std::pair<TokenId, float>> logit_bias;    // added before everything else
  std::vector<TokenId> allowed_token_ids;               // empty: all
  std::vector<std::vector<TokenId>> bad_words;          // token sequences never completed
  std::vector<std::string> bad_words_text;              // tokenised at admission into bad_words
  // The sample ends where this is complete and at no other place, but for max_tokens and stops.
  std::optional<GrammarSource> grammar;
  std::optional<ThinkingBudget> thinking;
};

struct Request {
  std::string id;                    // caller's id, echoed; may be empty
  std::vector<TokenId> prompt;       // at least one token
  SamplingParams sampling;
  int priority = 0;                  // lower runs earlier, as in vLLM
  std::string cache_salt;            // requests share prefix blocks only under an equal salt
  bool skip_prefix_cache = false;
  bool embed = false;  // the prompt's embedding comes with the first token
  std::optional<int64_t> deadline_us;  // monotonic; past it the request ends as kDeadline
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0.0F;
  int rank = 0;                                        // 1 is the likeliest
  std::vector<std::pair<TokenId, float>> top;          // descending
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;         // prompt tokens taken from the prefix cache
};

// One step's news of one sample of one request. A request with a grammar gets one delta without any
// as soon as its grammar can be enforced.
struct OutputDelta {
  RequestId request = 0;
  int sample = 0;                                    // 0..n-1
  std::vector<TokenId> token_ids;
  std::string text;                                  // complete UTF-8 only
  std::vector<TokenLogprob> logprobs;                // one per token id when asked for
  std::vector<std::optional<TokenLogprob>> prompt_logprobs;  // once, with the first delta
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;                             // the stop string that ended the sample
  std::optional<TokenId> stop_token;                 // the stop id that ended it
  bool last = false;                                 // no further delta of any sample will follow
  Usage usage;                                       // totals of this sample so far
  std::vector<float> embedding;                      // with `embed`: the state after the last norm
  std::string error;                                 // with kError
  int error_code = 0;                                // StatusCode, with kError
  std::string error_param;                           // what of the request is at fault, or empty
};

// Where tokens go. Called on the engine thread: must not block, must not call the engine.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void OnOutput(OutputDelta delta) = 0;
};

}  // namespace deepinfer
