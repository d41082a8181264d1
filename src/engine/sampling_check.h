// Checks what a user asked of sampling before anything is queued. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "text/tokenizer.h"

namespace deepinfer {

// What of a model and an engine limits sampling parameters.
struct SamplingLimits {
  int vocab = 0;          // rows of the output head
  int max_logprobs = 20;  // -1: the vocabulary
};

// Checks every field (names of the struct in Status::param, value and range in the message) and
// turns bad_words_text into bad_words. `tokenizer` may be nullptr: then stop strings and
// bad_words_text, which need text, are errors.
Status ValidateSampling(SamplingParams* sampling, const SamplingLimits& limits,
                        const Tokenizer* tokenizer);

// Every id is in [0, vocab).
Status ValidateIds(std::span<const TokenId> ids, int vocab, const char* param);
// No id is the placeholder of an image (-1: the model has none): requests carry no images.
Status ValidateImages(std::span<const TokenId> prompt, TokenId image_id);

}  // namespace deepinfer
