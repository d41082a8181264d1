#include "base/json.h"

#include <benchmark/benchmark.h>

#include "base/format.h"

namespace deepinfer {
namespace {

// The shape of a tokenizer file: a large vocabulary object and a list of merges.
std::string TokenizerText(int tokens) {
  std::string text = "{\"vocab\":{";
  for (int i = 0; i < tokens; ++i) text += Format("{}\"token\\u0120{}\":{}", i ? "," : "", i, i);
  text += "},\"merges\":[";
  for (int i = 0; i < tokens; ++i) text += Format("{}[\"left{}\",\"right{}\"]", i ? "," : "", i, i);
  return text + "]}";
}

void BM_ParseTokenizer(benchmark::State& state) {
  const std::string text = TokenizerText(150000);
  for (auto _ : state) benchmark::DoNotOptimize(Json::Parse(text).ok());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK(BM_ParseTokenizer)->Unit(benchmark::kMillisecond);

void BM_WriteStreamChunk(benchmark::State& state) {
  std::string out;
  for (auto _ : state) {
    out.clear();
    AppendJsonString(&out, " the answer is \"42\",\nand nothing else");
    benchmark::DoNotOptimize(out.data());
  }
}
BENCHMARK(BM_WriteStreamChunk);

}  // namespace
}  // namespace deepinfer
