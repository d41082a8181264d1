// Speed of Create, Encode and Decode on the reference models and mixed text, and on English.
#include <benchmark/benchmark.h>

#include "text/reference_data.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

constexpr const char* kModels[] = {"smollm2",      "qwen3",         "deepseek_v3",
                                   "llama3_small", "unigram_small", "fallback_small"};

std::string English() {
  const Json mix = ReadReferenceJson("mix.json");
  std::string once;
  for (const Json& line : mix.Find("texts")->items()) once += line.string() + "\n";
  std::string text;
  while (text.size() < (size_t{1} << 20)) text += once;
  return text;
}

std::string Mixed() {
  return MixedText(ReadReferenceJson("mix.json"), kReferenceTextSeed, kReferenceTextBytes);
}

void Create(benchmark::State& state) {
  const TokenizerSpec spec = ReadReferenceSpec(kModels[state.range(0)]);
  state.SetLabel(kModels[state.range(0)]);
  for (auto _ : state) {
    state.PauseTiming();
    TokenizerSpec copy = spec;
    state.ResumeTiming();
    benchmark::DoNotOptimize(Tokenizer::Create(std::move(copy)));
  }
}

void Encode(benchmark::State& state, const std::string& text) {
  const auto tokenizer = Tokenizer::Create(ReadReferenceSpec(kModels[state.range(0)]));
  state.SetLabel(kModels[state.range(0)]);
  for (auto _ : state) benchmark::DoNotOptimize((*tokenizer)->Encode(text));
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}

void EncodeEnglish(benchmark::State& state) { Encode(state, English()); }
void EncodeMixed(benchmark::State& state) { Encode(state, Mixed()); }

void Decode(benchmark::State& state) {
  const auto tokenizer = Tokenizer::Create(ReadReferenceSpec(kModels[state.range(0)]));
  state.SetLabel(kModels[state.range(0)]);
  const std::string text = English();
  const std::vector<TokenId> ids = (*tokenizer)->Encode(text);
  for (auto _ : state) benchmark::DoNotOptimize((*tokenizer)->Decode(ids, false));
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}

BENCHMARK(Create)->DenseRange(0, 2)->Unit(benchmark::kMillisecond);
BENCHMARK(EncodeEnglish)->DenseRange(0, 5)->Unit(benchmark::kMillisecond);
BENCHMARK(EncodeMixed)->DenseRange(0, 5)->Unit(benchmark::kMillisecond);
BENCHMARK(Decode)->DenseRange(0, 5)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace deepinfer
