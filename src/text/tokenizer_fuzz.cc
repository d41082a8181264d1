// A random specification and a random text: no crash, valid text out, the stream equals Decode.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

class Source {
 public:
  Source(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  bool Flag() { return (Byte() & 1) != 0; }
  int Below(int n) { return Byte() % n; }
  // Small numbers mostly, now and then any.
  int32_t Number() {
    if (Below(16) != 0) return Below(40) - 2;
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | Byte();
    return static_cast<int32_t>(value);
  }
  std::string Bytes(size_t most) {
    std::string text;
    for (size_t left = Byte() % (most + 1); left > 0; --left) {
      text += static_cast<char>(Byte());
    }
    return text;
  }
  std::string Rest() {
    std::string text(reinterpret_cast<const char*>(data_), size_);
    size_ = 0;
    return text;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A few characters that matter to the rules, or any bytes.
std::string Piece(Source* in) {
  static constexpr std::string_view kKnown[] = {
      "a",      "b",   "ab",           " ",  "\xE2\x96\x81", "\xC4\xA0", "\xC3\xA9", "e\xCC\x81",
      "<0x61>", "<s>", "\xE4\xB8\xAD", "\n", "'s",           "12",       "</w>",     "<unk>"};
  const int kind = in->Below(20);
  return kind < 16 ? std::string(kKnown[kind]) : in->Bytes(6);
}

std::string Pattern(Source* in) {
  static constexpr std::string_view kKnown[] = {
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
      R"(\p{N}{1,3})",
      "[一-龥぀-ゟ゠-ヿ]+",
      R"(\s+|\w+)",
      R"((a+)+b)",
      R"(\p{N}{1,3}+|[^\s]?x*)",
      ""};
  const int kind = in->Below(10);
  return kind < 7 ? std::string(kKnown[kind]) : in->Bytes(20);
}

void AddSteps(Source* in, TokenizerSpec* spec) {
  for (int left = in->Below(4); left > 0; --left) {
    spec->normalizers.push_back({static_cast<NormalizerStep::Kind>(in->Below(9)), Piece(in),
                                 Piece(in), in->Flag(), in->Flag()});
  }
  for (int left = in->Below(4); left > 0; --left) {
    PreTokenizerStep step;
    step.kind = static_cast<PreTokenizerStep::Kind>(in->Below(7));
    step.pattern = Pattern(in);
    step.pattern_is_regex = in->Flag();
    step.behavior = static_cast<PreTokenizerStep::Behavior>(in->Below(5));
    step.invert = in->Flag();
    step.add_prefix_space = in->Flag();
    step.use_regex = in->Flag();
    step.individual_digits = in->Flag();
    if (in->Flag()) step.replacement = Piece(in);
    step.prepend = static_cast<PreTokenizerStep::Prepend>(in->Below(3));
    step.split = in->Flag();
    spec->pre_tokenizers.push_back(std::move(step));
  }
  for (int left = in->Below(5); left > 0; --left) {
    DecoderStep step;
    step.kind = static_cast<DecoderStep::Kind>(in->Below(7));
    step.pattern = Piece(in);
    step.content = Piece(in);
    step.start = in->Below(4);
    step.stop = in->Below(4);
    step.strip_leading = in->Flag();
    spec->decoders.push_back(std::move(step));
  }
}

TokenizerSpec Spec(Source* in) {
  TokenizerSpec spec;
  spec.model = in->Flag() ? TokenizerSpec::Model::kBpe : TokenizerSpec::Model::kUnigram;
  for (int left = in->Below(32); left > 0; --left) spec.vocab.push_back(Piece(in));
  if (spec.vocab.empty()) spec.vocab.emplace_back("a");
  const bool scored = spec.model == TokenizerSpec::Model::kUnigram || in->Flag();
  for (size_t i = 0; scored && i < spec.vocab.size(); ++i) {
    spec.scores.push_back(static_cast<float>(in->Below(8)) - 4.0F);
  }
  const auto entry = [&] { return spec.vocab[in->Byte() % spec.vocab.size()]; };
  for (int left = scored ? 0 : in->Below(8); left > 0; --left) {
    // A merge whose result is known, so that most specifications are accepted.
    std::string left_piece = entry();
    std::string right_piece = entry();
    spec.vocab.push_back(left_piece + right_piece);
    spec.merges.emplace_back(std::move(left_piece), std::move(right_piece));
  }
  spec.unk_id = in->Flag() ? 0 : in->Number();
  spec.byte_fallback = in->Flag();
  spec.ignore_merges = in->Flag();
  spec.fuse_unk = in->Flag();
  for (int left = in->Below(5); left > 0; --left) {
    AddedToken added;
    const int32_t number = in->Number();
    // A vocabulary of millions is slow to make and shows nothing.
    const bool large = number > 1000 && number < (1 << 22);
    added.id = static_cast<TokenId>(static_cast<uint32_t>(spec.vocab.size()) +
                                    static_cast<uint32_t>(large ? number % 1000 : number));
    added.content = Piece(in);
    added.special = in->Flag();
    added.single_word = in->Flag();
    added.lstrip = in->Flag();
    added.rstrip = in->Flag();
    added.normalized = in->Flag();
    spec.added.push_back(std::move(added));
  }
  AddSteps(in, &spec);
  if (in->Flag()) spec.prefix_ids.push_back(in->Number());
  return spec;
}

void Check(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

int FuzzOne(const uint8_t* data, size_t size) {
  Source in(data, size);
  const auto tokenizer = Tokenizer::Create(Spec(&in));
  if (!tokenizer.ok()) return 0;
  const bool skip = in.Flag();
  const std::vector<TrustedSpan> spans = {{in.Byte(), in.Byte()}, {in.Byte(), in.Byte()}};
  EncodeOptions options;
  options.spans_only = in.Flag();
  options.spans = spans;
  std::string text = in.Rest();
  // Repetition is what makes time grow.
  if (text.size() > 1 && text.size() < 64 && (text[0] & 7) == 0) {
    const std::string unit = text;
    while (text.size() < 20000) text += unit;
  }
  std::vector<TokenId> ids = (*tokenizer)->Encode(text, options);
  for (const TokenId id : ids) Check(id >= 0 && id < (*tokenizer)->vocab_size());
  for (size_t i = 0; i < size && i < 64; ++i) ids.push_back(static_cast<TokenId>(data[i]) - 4);
  Detokenizer detokenizer(tokenizer->get(), skip, true);
  std::string stream;
  for (const TokenId id : ids) {
    const size_t before = stream.size();
    detokenizer.Push(id, &stream);
    Check(ValidUtf8Prefix(std::string_view(stream).substr(before)) == stream.size() - before);
  }
  detokenizer.Finish(&stream);
  Check(stream == (*tokenizer)->Decode(ids, skip));
  return 0;
}

}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return deepinfer::FuzzOne(data, size);
}
