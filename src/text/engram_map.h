// The constants of Engram memory: which tokens count as one key, and how n-grams of keys hash to
// table rows. Derived from the tokenizer and four numbers of the configuration; shipped beside a
// checkpoint as engram.json. Pure functions, safe on any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "deepinfer/status.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct EngramShape {
  std::vector<int> layer_ids;
  int64_t table_size = 0;  // engram_vocab_size: each table is the next unused prime from here on
  int max_ngram = 0;
  int heads = 0;
  TokenId pad_token = 0;
  int vocab = 0;  // of the model; ids past the tokenizer's have the empty key
};

// One vector for each Engram layer; rows of a layer's table are ordered by n-gram, then head.
struct EngramSidecar {
  int64_t keys = 0;                // compressed vocabulary
  std::vector<int32_t> token_map;  // token id -> key
  int32_t pad = 0;                 // key of the pad token
  std::vector<int> layer_ids;
  int heads = 0;
  std::vector<std::vector<int64_t>> multipliers;  // [max_ngram], odd
  std::vector<std::vector<int64_t>> primes;       // [(max_ngram - 1) * heads]
  std::vector<std::vector<int64_t>> offsets;      // of each prime's rows in the table
  std::vector<int64_t> rows;                      // of the whole table
};

// Errors name the field that is out of range.
Result<EngramSidecar> ComputeEngramSidecar(const EngramShape& shape, const Tokenizer& tokenizer);

// The form of engram.json.
Json EngramSidecarJson(const EngramSidecar& sidecar);

// What a token's text is reduced to, so that "Hello", " hello" and "HÉLLO" are one key.
std::string EngramKeyOf(const std::string& text);

// numpy.random.default_rng(seed).integers(0, bound, count, int64) for bounds past 2^32.
std::vector<int64_t> NumpyIntegers(uint32_t seed, int64_t bound, int count);

}  // namespace deepinfer
