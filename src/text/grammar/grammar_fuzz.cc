// Random sources of every kind: compiled or refused in bounded time; what compiles is walked, and
// what a mask allows is accepted.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"

namespace deepinfer {
namespace {

void Check(bool condition) {
  if (!condition) std::abort();
}

std::shared_ptr<const GrammarVocabulary> Vocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* word : {"{\"", "\":", "\",\"", "aaa", "12", "é", "\\u00", "]}"}) {
    bytes.emplace_back(word);
  }
  bytes.emplace_back();
  GrammarVocabulary::Options options;
  options.stop_ids = {static_cast<TokenId>(bytes.size() - 1)};
  options.mask_cache_bytes_max = 1 << 20;
  return *GrammarVocabulary::Create(bytes, options);
}

}  // namespace

int FuzzOne(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const GrammarVocabulary> vocabulary = Vocabulary();
  if (size < 2) return 0;
  constexpr GrammarSource::Kind kKinds[] = {
      GrammarSource::Kind::kJsonSchema, GrammarSource::Kind::kRegex, GrammarSource::Kind::kBnf,
      GrammarSource::Kind::kChoice, GrammarSource::Kind::kStructuralTag};
  GrammarSource source;
  source.kind = kKinds[data[0] % 5];
  GrammarOptions options = (data[1] & 1) != 0 ? GrammarOptions::ForChecking() : GrammarOptions();
  options.work_max = 50'000;
  options.states_max = 2'000;
  source.text.assign(reinterpret_cast<const char*>(data + 2), size - 2);
  const auto grammar = CompiledGrammar::Compile(source, options);
  if (!grammar.ok()) {
    Check(!grammar.status().message().empty());
    return 0;
  }
  GrammarMatcher matcher(*grammar, vocabulary, 4);
  std::vector<uint64_t> mask(vocabulary->mask_words());
  for (size_t step = 0; step < 24; ++step) {
    const bool any = matcher.FillMask(mask);
    const size_t start = data[2 + step % (size - 2 == 0 ? 1 : size - 2)] * 7U;
    bool moved = false;
    for (size_t i = 0; i < static_cast<size_t>(vocabulary->size()) && !moved; ++i) {
      const size_t id = (start + i) % static_cast<size_t>(vocabulary->size());
      if ((mask[id / 64] >> (id % 64) & 1) == 0) continue;
      // A limit on ambiguity may stop what the mask of each reading alone allows.
      moved = matcher.Accept(static_cast<TokenId>(id));
      Check(moved || matcher.limit_reached() != nullptr);
    }
    if (!any || !moved) break;
    if (step % 5 == 4) Check(matcher.Rollback(1));
  }
  return 0;
}

}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return size > 2 ? deepinfer::FuzzOne(data, size) : 0;
}
