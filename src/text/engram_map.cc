#include "text/engram_map.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr int kLayersMax = 64;
constexpr int kNgramMax = 16;
constexpr int kHeadsMax = 64;
constexpr int64_t kTableMax = int64_t{1} << 36;
constexpr int kVocabMax = 1 << 22;
constexpr uint32_t kSeedOfLayer = 10007;

using Wide = unsigned __int128;

// numpy's PCG64 seeded through its SeedSequence.
class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed) {
    const std::array<uint64_t, 4> words = SeedWords(seed);
    increment_ = (Join(words[2], words[3]) << 1) | 1;
    Step();
    state_ += Join(words[0], words[1]);
    Step();
  }

  uint64_t Next() {
    Step();
    const auto high = static_cast<uint64_t>(state_ >> 64), low = static_cast<uint64_t>(state_);
    const uint64_t mixed = high ^ low;
    const auto turn = static_cast<int>(high >> 58);
    return turn == 0 ? mixed : (mixed >> turn) | (mixed << (64 - turn));
  }

 private:
  static Wide Join(uint64_t high, uint64_t low) { return (Wide{high} << 64) | low; }

  void Step() {
    constexpr uint64_t kHigh = 0x2360ED051FC65DA4U, kLow = 0x4385DF649FCCF645U;
    state_ = state_ * Join(kHigh, kLow) + increment_;
  }

  static std::array<uint64_t, 4> SeedWords(uint32_t seed) {
    uint32_t hash = 0x43B0D7E5U;
    const auto hashed = [&hash](uint32_t value) {
      value ^= hash;
      hash *= 0x931E8875U;
      value *= hash;
      return value ^ (value >> 16);
    };
    std::array<uint32_t, 4> pool{};
    for (size_t i = 0; i < pool.size(); ++i) pool[i] = hashed(i == 0 ? seed : 0);
    for (size_t from = 0; from < pool.size(); ++from) {
      for (size_t to = 0; to < pool.size(); ++to) {
        if (from == to) continue;
        const uint32_t mixed = 0xCA01F9DDU * pool[to] - 0x4973F715U * hashed(pool[from]);
        pool[to] = mixed ^ (mixed >> 16);
      }
    }
    std::array<uint64_t, 4> words{};
    hash = 0x8B51F9DDU;
    for (size_t i = 0; i < 8; ++i) {
      uint32_t value = pool[i % 4] ^ hash;
      hash *= 0x58F38DEDU;
      value *= hash;
      value ^= value >> 16;
      words[i / 2] |= uint64_t{value} << (32 * (i % 2));
    }
    return words;
  }

  Wide state_ = 0, increment_ = 0;
};

bool IsPrime(int64_t n) {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (int64_t k = 3; k * k <= n; k += 2) {
    if (n % k == 0) return false;
  }
  return true;
}

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string CollapseBlanks(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsBlank(text[i])) {
      out.push_back(text[i]);
    } else if (i == 0 || !IsBlank(text[i - 1])) {
      out.push_back(' ');
    }
  }
  return out;
}

bool IsSpaceAt(const char* p, int* length) {
  return (CharClassAt(p, length) & CharClass::kSpace) != 0;
}

std::string StripSpace(const std::string& text) {
  size_t begin = 0, end = text.size();
  int length = 0;
  while (begin < end && IsSpaceAt(text.data() + begin, &length)) {
    begin += static_cast<size_t>(length);
  }
  while (end > begin) {
    const size_t last = PreviousUtf8Start(text, end);
    if (!IsSpaceAt(text.data() + last, &length)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

const Normalizer& KeyNormalizer() {
  static const Normalizer normalizer = [] {
    std::vector<NormalizerStep> steps(4);
    steps[0].kind = NormalizerStep::Kind::kNfkc;
    steps[1].kind = NormalizerStep::Kind::kNfd;
    steps[2].kind = NormalizerStep::Kind::kStripAccents;
    steps[3].kind = NormalizerStep::Kind::kLowercase;
    Result<Normalizer> compiled = Normalizer::Compile(steps);
    DI_CHECK(compiled.ok(), "{}", compiled.status().message());
    return std::move(compiled).value();
  }();
  return normalizer;
}

std::string Replaced(const std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out.append(text, at, found - at);
    if (found == text.size()) break;
    out += to;
    at = found + from.size();
  }
  return out;
}

// The key of token `id`, which is decoded alone.
std::string KeyOfToken(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes(tokenizer.Bytes(id));
  const bool is_text =
      ValidUtf8Prefix(bytes) == bytes.size() && bytes.find(kReplacementUtf8) == std::string::npos;
  if (!is_text) return tokenizer.Piece(id);
  std::string key = EngramKeyOf(bytes);
  return key.empty() ? bytes : key;
}

Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return Invalid(Format("{} is {}, allowed are {} to {}", field, value, low, high))
      .WithParam(field);
}

Status CheckShape(const EngramShape& shape) {
  DI_TRY(CheckRange("engram_layer_ids (their number)", static_cast<int64_t>(shape.layer_ids.size()),
                    1, kLayersMax));
  for (const int layer : shape.layer_ids) {
    DI_TRY(CheckRange("engram_layer_ids", layer, 0, 100'000));
  }
  DI_TRY(CheckRange("engram_vocab_size", shape.table_size, 1, kTableMax));
  DI_TRY(CheckRange("engram_max_ngram_size", shape.max_ngram, 2, kNgramMax));
  DI_TRY(CheckRange("engram_n_heads", shape.heads, 1, kHeadsMax));
  DI_TRY(CheckRange("vocab_size", shape.vocab, 1, kVocabMax));
  return CheckRange("engram_pad_token_id", shape.pad_token, 0, shape.vocab - 1);
}

Json IntsJson(const std::vector<int64_t>& values) {
  Json list = Json::Array();
  for (const int64_t value : values) list.Push(Json::Int(value));
  return list;
}

}  // namespace

std::string EngramKeyOf(const std::string& text) {
  NormalizedText normalized, work;
  KeyNormalizer().Run(text, Normalizer::Track::kNothing, &normalized, &work);
  std::string key = CollapseBlanks(normalized.text);
  if (key == " ") return key;
  // U+E000 stands for a space that stripping must spare.
  return Replaced(StripSpace(key), "\xEE\x80\x80", " ");
}

std::vector<int64_t> NumpyIntegers(uint32_t seed, int64_t bound, int count) {
  DI_CHECK(bound > (int64_t{1} << 32), "numpy draws small bounds in another way");
  const auto range = static_cast<uint64_t>(bound);
  const uint64_t threshold = (0 - range) % range;
  Pcg64 rng(seed);
  std::vector<int64_t> values;
  for (int i = 0; i < count; ++i) {
    Wide product = Wide{rng.Next()} * range;
    while (static_cast<uint64_t>(product) < threshold) product = Wide{rng.Next()} * range;
    values.push_back(static_cast<int64_t>(product >> 64));
  }
  return values;
}

Result<EngramSidecar> ComputeEngramSidecar(const EngramShape& shape, const Tokenizer& tokenizer) {
  DI_TRY(CheckShape(shape));
  EngramSidecar sidecar;
  std::unordered_map<std::string, int32_t> keys;
  for (TokenId id = 0; id < shape.vocab; ++id) {
    const auto next = static_cast<int32_t>(keys.size());
    sidecar.token_map.push_back(keys.emplace(KeyOfToken(tokenizer, id), next).first->second);
  }
  sidecar.keys = static_cast<int64_t>(keys.size());
  sidecar.pad = sidecar.token_map[static_cast<size_t>(shape.pad_token)];
  sidecar.layer_ids = shape.layer_ids;
  sidecar.heads = shape.heads;
  const int64_t bound = std::numeric_limits<int64_t>::max() / sidecar.keys / 2;
  int64_t candidate = shape.table_size - 1;
  for (const int layer : shape.layer_ids) {
    std::vector<int64_t>& multipliers = sidecar.multipliers.emplace_back();
    for (const int64_t drawn :
         NumpyIntegers(kSeedOfLayer * static_cast<uint32_t>(layer), bound, shape.max_ngram)) {
      multipliers.push_back(2 * drawn + 1);
    }
    std::vector<int64_t>& primes = sidecar.primes.emplace_back();
    std::vector<int64_t>& offsets = sidecar.offsets.emplace_back();
    int64_t rows = 0;
    while (static_cast<int>(primes.size()) < (shape.max_ngram - 1) * shape.heads) {
      if (!IsPrime(++candidate)) continue;
      primes.push_back(candidate);
      offsets.push_back(rows);
      rows += candidate;
    }
    sidecar.rows.push_back(rows);
  }
  return sidecar;
}

Json EngramSidecarJson(const EngramSidecar& sidecar) {
  Json json = Json::Object();
  json.Set("compressed_vocab_size", Json::Int(sidecar.keys));
  json.Set("pad", Json::Int(sidecar.pad));
  Json& map = json.Set("token_map", Json::Array());
  for (const int32_t key : sidecar.token_map) map.Push(Json::Int(key));
  Json& layers = json.Set("layer_ids", Json::Array());
  for (const int layer : sidecar.layer_ids) layers.Push(Json::Int(layer));
  Json multipliers = Json::Array(), primes = Json::Array(), offsets = Json::Array();
  for (size_t i = 0; i < sidecar.layer_ids.size(); ++i) {
    multipliers.Push(IntsJson(sidecar.multipliers[i]));
    offsets.Push(IntsJson(sidecar.offsets[i]));
    Json& by_ngram = primes.Push(Json::Array());
    const auto heads = static_cast<size_t>(sidecar.heads);
    for (size_t at = 0; at < sidecar.primes[i].size(); at += heads) {
      const auto begin = sidecar.primes[i].begin() + static_cast<ptrdiff_t>(at);
      by_ngram.Push(IntsJson({begin, begin + static_cast<ptrdiff_t>(heads)}));
    }
  }
  json.Set("multipliers", std::move(multipliers));
  json.Set("primes", std::move(primes));
  json.Set("offsets", std::move(offsets));
  json.Set("rows", IntsJson(sidecar.rows));
  return json;
}

}  // namespace deepinfer
