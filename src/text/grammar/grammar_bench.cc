// Time of a mask per token at the vocabulary of DeepSeek V3 (129 thousand tokens), and of
// compilation. Counters: microseconds at the 50th and 99.9th percentile and the longest.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/mask_warmer.h"
#include "text/reference_data.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

struct Case {
  const char* name;
  std::string schema;
  std::string document;
};

std::vector<Case> Cases() {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "A sentence of some length, with 12 numbers in it. ";
  std::string lower;
  for (int i = 0; i < 300; ++i) lower += "abcde ghij ";
  return {
      {"object",
       R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer",
        "minimum":0,
          "maximum":150},"tags":{"type":"array","items":{"enum":["red","green","blue"]}},
          "address":{"type":"object","properties":{"street":{"type":"string"},
        "zip":{"type":"string",
          "pattern":"^[0-9]{5}$"}},"required":["street"],"additionalProperties":false}},
          "required":["name","age"],"additionalProperties":false})",
       R"({"name": "Ada Lovelace", "age": 36, "tags": ["red", "blue"], "address": )"
       R"({"street": "12 St James's Square, London", "zip": "12345"}})"},
      {"open object",
       R"({"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]})",
       R"({"something else": {"list": [1, 2.5, null, true]}, "id": 7, "note": "free text here"})"},
      {"maxLength 100000", R"({"type":"string","maxLength":100000})", "\"" + text + "\""},
      {"pattern beside maxLength",
       R"({"type":"string","pattern":"^([a-z]+ ?)*$","maxLength":100000})", "\"" + lower + "\""},
  };
}

double At(std::vector<double>* times, double share) {
  std::sort(times->begin(), times->end());
  return (*times)[std::min(times->size() - 1,
                           static_cast<size_t>(share * static_cast<double>(times->size())))];
}

void Mask(benchmark::State& state) {
  const Case test = Cases()[static_cast<size_t>(state.range(0))];
  state.SetLabel(test.name);
  const auto tokenizer = Tokenizer::Create(ReadReferenceSpec("deepseek_v3"));
  GrammarVocabulary::Options options;
  if ((*tokenizer)->eos_id() >= 0) options.stop_ids = {(*tokenizer)->eos_id()};
  const auto vocabulary = *GrammarVocabulary::Create(**tokenizer, options);
  const auto grammar = *CompiledGrammar::Compile({GrammarSource::Kind::kJsonSchema, test.schema});
  WarmMasks(*grammar, *vocabulary);  // as the builder does
  EncodeOptions encode;
  encode.add_special_tokens = false;
  const std::vector<TokenId> ids = (*tokenizer)->Encode(test.document, encode);
  std::vector<uint64_t> mask(vocabulary->mask_words());
  std::vector<double> times;
  for (auto _ : state) {
    GrammarMatcher matcher(grammar, vocabulary);
    for (const TokenId id : ids) {
      const auto begin = std::chrono::steady_clock::now();
      const bool any = matcher.FillMask(mask);
      times.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
              .count());
      if (!any || !matcher.Accept(id)) return state.SkipWithError("the document was refused");
    }
  }
  state.counters["tokens"] = static_cast<double>(ids.size());
  state.counters["p50_us"] = At(&times, 0.5);
  state.counters["p99.9_us"] = At(&times, 0.999);
  state.counters["max_us"] = times.back();
}

void Compile(benchmark::State& state) {
  const Case test = Cases()[static_cast<size_t>(state.range(0))];
  state.SetLabel(test.name);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        CompiledGrammar::Compile({GrammarSource::Kind::kJsonSchema, test.schema}));
  }
}

BENCHMARK(Mask)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);
BENCHMARK(Compile)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace deepinfer
