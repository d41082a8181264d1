#include "text/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "base/format.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/decode_plan.h"
#include "text/detokenizer.h"
#include "text/normalizer.h"
#include "text/piece_table.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"
#include "text/unigram.h"

namespace deepinfer {
namespace {

constexpr size_t kVocabMax = size_t{1} << 22;
constexpr size_t kMergesMax = size_t{1} << 23;
constexpr size_t kPieceBytesMax = size_t{1} << 16;
constexpr size_t kAddedBytesMax = 4096;
constexpr size_t kScratchKept = 4;                     // work spaces kept for later calls
constexpr size_t kScratchBytesKept = size_t{4} << 20;  // a larger one is freed

// Everything one call of Encode writes to.
struct Scratch {
  BpeScratch bpe;
  UnigramScratch unigram;
  PreTokenizer::Scratch pre;
  NormalizedText normalized, work;
  std::vector<TextPart> raw_parts, parts;

  size_t bytes() const {
    return bpe.bytes() + unigram.bytes() + pre.bytes() + normalized.text.capacity() +
           work.text.capacity() +
           (normalized.source.capacity() + work.source.capacity()) * sizeof(size_t) +
           (raw_parts.capacity() + parts.capacity()) * sizeof(TextPart);
  }
};

// One span holds [begin, end) entirely.
bool Covers(std::span<const TrustedSpan> spans, size_t begin, size_t end) {
  auto after = std::upper_bound(
      spans.begin(), spans.end(), begin,
      [](size_t position, const TrustedSpan& span) { return position < span.begin; });
  return after != spans.begin() && end <= std::prev(after)->end;
}

// Each maximal invalid prefix becomes U+FFFD; span borders move with the text. A border inside an
// invalid prefix lands inside its U+FFFD, so that no match may use it.
std::string Sanitize(std::string_view text, std::vector<TrustedSpan>* spans) {
  struct Anchor {
    size_t in, out;
  };
  std::string out;
  std::vector<Anchor> anchors;
  for (size_t at = 0; at < text.size();) {
    anchors.push_back({at, out.size()});
    const std::string_view rest = text.substr(at);
    const size_t valid = ValidUtf8Prefix(rest);
    if (valid > 0) {
      out += rest.substr(0, valid);
      at += valid;
    } else {
      out += kReplacementUtf8;
      at += static_cast<size_t>(NextUtf8Step(rest).length);
    }
  }
  const auto moved = [&](size_t border) {
    if (border >= text.size()) return out.size();
    const auto after = std::upper_bound(
        anchors.begin(), anchors.end(), border,
        [](size_t position, const Anchor& anchor) { return position < anchor.in; });
    const Anchor& anchor = *std::prev(after);
    return anchor.out + (border - anchor.in);
  };
  for (TrustedSpan& span : *spans) span = {moved(span.begin), moved(span.end)};
  return out;
}

Status CheckId(TokenId id, size_t vocab, const char* what) {
  if (id >= -1 && (id < 0 || static_cast<size_t>(id) < vocab)) return {};
  return Invalid(Format("{} is {}, the vocabulary has ids 0 to {}", what, id, vocab - 1));
}

Status CheckAdded(const TokenizerSpec& spec) {
  for (const AddedToken& added : spec.added) {
    if (added.id < 0 || static_cast<size_t>(added.id) >= kVocabMax) {
      return Invalid(Format("added token {:?} has id {}, allowed are 0 to {}", added.content,
                            added.id, kVocabMax - 1));
    }
    if (added.content.size() > kAddedBytesMax) {
      return Invalid(Format("added token {} has {} bytes, at most {} are allowed", added.id,
                            added.content.size(), kAddedBytesMax));
    }
    if (ValidUtf8Prefix(added.content) != added.content.size()) {
      return Invalid(Format("added token {} is not valid UTF-8", added.id));
    }
    const auto index = static_cast<size_t>(added.id);
    if (index < spec.vocab.size() && !spec.vocab[index].empty() &&
        spec.vocab[index] != added.content) {
      return Invalid(Format("added token {:?} has id {}, which the vocabulary gives to {:?}",
                            added.content, added.id, spec.vocab[index]));
    }
  }
  return {};
}

Status CheckSpec(const TokenizerSpec& spec) {
  if (spec.vocab.empty() || spec.vocab.size() > kVocabMax) {
    return Invalid(
        Format("the vocabulary has {} entries, allowed are 1 to {}", spec.vocab.size(), kVocabMax));
  }
  if (spec.merges.size() > kMergesMax) {
    return Invalid(Format("the tokenizer has {} merges, at most {} are allowed", spec.merges.size(),
                          kMergesMax));
  }
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].size() > kPieceBytesMax) {
      return Invalid(Format("token {} has {} bytes, at most {} are allowed", id,
                            spec.vocab[id].size(), kPieceBytesMax));
    }
  }
  const bool scored =
      spec.model == TokenizerSpec::Model::kUnigram || (spec.merges.empty() && !spec.scores.empty());
  if (scored && spec.scores.size() != spec.vocab.size()) {
    return Invalid(
        Format("the tokenizer has {} scores for {} tokens", spec.scores.size(), spec.vocab.size()));
  }
  for (size_t id = 0; scored && id < spec.scores.size(); ++id) {
    if (!std::isfinite(spec.scores[id])) {
      return Invalid(Format("the score of token {} is not a finite number", id));
    }
  }
  return CheckAdded(spec);
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerSpec spec;      // vocab completed with the added tokens
  PieceTable model_table;  // the model's own vocabulary
  PieceTable added_table;  // added tokens that the model does not know
  std::vector<bool> special;
  Normalizer normalizer;
  AddedTokenSet raw_tokens, normalized_tokens;
  bool normalized_control = false;  // some token matched in normalised text is a control token
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Bpe> bpe;
  std::unique_ptr<Unigram> unigram;
  DecodePlan decode_plan;

  mutable std::mutex mutex;  // guards `idle`
  mutable std::vector<std::unique_ptr<Scratch>> idle;

  struct Call {
    std::span<const TrustedSpan> spans;
    bool spans_only = false;
    EncodeOptions::Bound bound = EncodeOptions::Bound::kControl;
    Scratch* scratch = nullptr;
    std::vector<TokenId>* out = nullptr;

    // A match of this token counts only inside a span.
    bool Binds(const AddedTokenSet::Candidate& token) const {
      return spans_only && (token.control || bound == EncodeOptions::Bound::kEveryAdded);
    }
  };

  Status Init(TokenizerSpec given);
  void AddTokens();
  std::unique_ptr<Scratch> Borrow() const;
  void Return(std::unique_ptr<Scratch> scratch) const;
  void EncodeText(std::string_view text, const Call& call) const;
  void EncodeStretch(std::string_view text, size_t begin, const Call& call) const;
  void EncodePieces(std::string_view text, PreTokenizer::Place place, const Call& call) const;
};

Status Tokenizer::Impl::Init(TokenizerSpec given) {
  DI_TRY(CheckSpec(given));
  spec = std::move(given);
  const size_t model_size = spec.vocab.size();
  size_t size = model_size;
  for (const AddedToken& added : spec.added) {
    size = std::max(size, static_cast<size_t>(added.id) + 1);
  }
  for (const auto& [id, name] : {std::pair{spec.unk_id, "unk_id"},
                                 {spec.bos_id, "bos_id"},
                                 {spec.eos_id, "eos_id"},
                                 {spec.pad_id, "pad_id"}}) {
    DI_TRY(CheckId(id, size, name));
  }
  for (const std::vector<TokenId>* ids : {&spec.prefix_ids, &spec.suffix_ids}) {
    for (const TokenId id : *ids) {
      if (id < 0) return Invalid(Format("a post-processor id is {}", id));
      DI_TRY(CheckId(id, size, "a post-processor id"));
    }
  }
  DI_ASSIGN(normalizer, Normalizer::Compile(spec.normalizers));
  DI_ASSIGN(pre_tokenizer, PreTokenizer::Compile(spec.pre_tokenizers));
  model_table.Reset(spec.vocab, model_size);
  for (size_t id = 0; id < model_size; ++id) model_table.Insert(static_cast<TokenId>(id));
  if (spec.model == TokenizerSpec::Model::kUnigram) {
    DI_ASSIGN(unigram, Unigram::Build(spec, &model_table));
  } else {
    DI_ASSIGN(bpe, Bpe::Build(spec, &model_table));
  }
  std::vector<std::pair<std::string, std::string>>().swap(spec.merges);
  // The strings move with their vector, so the tables are pointed at their new place.
  if (size > model_size) spec.vocab.resize(size);
  model_table.Rebase(spec.vocab);
  AddTokens();
  DI_ASSIGN(decode_plan, DecodePlan::Compile(spec, spec.vocab));
  return {};
}

void Tokenizer::Impl::AddTokens() {
  special.assign(spec.vocab.size(), false);
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_contents, normalized_contents;
  NormalizedText text, work;
  for (const AddedToken& added : spec.added) {
    if (added.content.empty()) continue;
    spec.vocab[static_cast<size_t>(added.id)] = added.content;
    special[static_cast<size_t>(added.id)] =
        special[static_cast<size_t>(added.id)] || added.special;
    if (!added.normalized) {
      raw.push_back(added);
      raw_contents.push_back(added.content);
      continue;
    }
    normalizer.Run(added.content, Normalizer::Track::kNothing, &text, &work);
    normalized.push_back(added);
    normalized_contents.push_back(text.text);
    normalized_control = normalized_control || IsControlToken(added);
  }
  raw_tokens.Build(raw, raw_contents);
  normalized_tokens.Build(normalized, normalized_contents);
  added_table.Reset(spec.vocab, spec.added.size());
  for (const AddedToken& added : spec.added) {
    if (!added.content.empty()) added_table.Insert(added.id);
  }
}

std::unique_ptr<Scratch> Tokenizer::Impl::Borrow() const {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!idle.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(idle.back());
      idle.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::Impl::Return(std::unique_ptr<Scratch> scratch) const {
  if (scratch->bytes() > kScratchBytesKept) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (idle.size() < kScratchKept) idle.push_back(std::move(scratch));
}

void Tokenizer::Impl::EncodeText(std::string_view text, const Call& call) const {
  std::vector<TextPart>& parts = call.scratch->raw_parts;
  raw_tokens.Split(
      text,
      [&](const AddedTokenSet::Candidate& token, size_t begin, size_t end) {
        return !call.Binds(token) || Covers(call.spans, begin, end);
      },
      &parts);
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      call.out->push_back(part.id);
    } else {
      EncodeStretch(text.substr(part.begin, part.end - part.begin), part.begin, call);
    }
  }
}

// Text without raw added tokens that stands at `begin` of the input.
void Tokenizer::Impl::EncodeStretch(std::string_view text, size_t begin, const Call& call) const {
  using Place = PreTokenizer::Place;
  const std::vector<size_t>* source = nullptr;
  if (!normalizer.empty()) {
    NormalizedText& normalized = call.scratch->normalized;
    const bool track =
        call.spans_only && (normalized_control || call.bound == EncodeOptions::Bound::kEveryAdded);
    normalizer.Run(text, track ? Normalizer::Track::kSource : Normalizer::Track::kNothing,
                   &normalized, &call.scratch->work);
    text = normalized.text;
    if (track) source = &normalized.source;
  }
  const Place place = begin == 0 ? Place::kStart : Place::kInside;
  if (normalized_tokens.empty()) {
    if (!text.empty()) EncodePieces(text, place, call);
    return;
  }
  std::vector<TextPart>& parts = call.scratch->parts;
  normalized_tokens.Split(
      text,
      [&](const AddedTokenSet::Candidate& token, size_t from, size_t to) {
        if (!call.Binds(token)) return true;
        if (source == nullptr) return Covers(call.spans, begin + from, begin + to);
        return Covers(call.spans, begin + (*source)[from], begin + (*source)[to]);
      },
      &parts);
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      call.out->push_back(part.id);
    } else {
      EncodePieces(text.substr(part.begin, part.end - part.begin),
                   part.begin == 0 ? place : Place::kInside, call);
    }
  }
}

void Tokenizer::Impl::EncodePieces(std::string_view text, PreTokenizer::Place place,
                                   const Call& call) const {
  Scratch* scratch = call.scratch;
  if (unigram != nullptr) {
    std::string level;
    pre_tokenizer->Run(text, place, &scratch->pre, [&](std::string_view piece) {
      if (pre_tokenizer->byte_level()) {
        level.clear();
        AppendByteLevel(piece, &level);
        piece = level;
      }
      unigram->EncodeWord(piece, &scratch->unigram, call.out);
    });
    return;
  }
  const Bpe::Form form = pre_tokenizer->byte_level() ? Bpe::Form::kBytes : Bpe::Form::kText;
  pre_tokenizer->Run(text, place, &scratch->pre, [&](std::string_view piece) {
    bpe->EncodeWord(piece, form, &scratch->bpe, call.out);
  });
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  auto impl = std::make_unique<Impl>();
  DI_TRY(impl->Init(std::move(spec)));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  std::string sanitized;
  std::vector<TrustedSpan> moved;
  std::span<const TrustedSpan> spans = options.spans;
  if (ValidUtf8Prefix(text) != text.size()) {
    moved.assign(spans.begin(), spans.end());
    sanitized = Sanitize(text, &moved);
    text = sanitized;
    spans = moved;
  }
  ids.reserve(text.size() / 4 + impl_->spec.prefix_ids.size() + impl_->spec.suffix_ids.size() + 8);
  if (options.add_special_tokens) ids = impl_->spec.prefix_ids;
  std::unique_ptr<Scratch> scratch = impl_->Borrow();
  scratch->bpe.Prepare(text.size());
  impl_->EncodeText(text, {spans, options.spans_only, options.bound, scratch.get(), &ids});
  impl_->Return(std::move(scratch));
  if (options.add_special_tokens) {
    ids.insert(ids.end(), impl_->spec.suffix_ids.begin(), impl_->spec.suffix_ids.end());
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text;
  Detokenizer detokenizer(this, skip_special_tokens, true);
  for (const TokenId id : ids) detokenizer.Push(id, &text);
  detokenizer.Finish(&text);
  return text;
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->spec.vocab.size()); }

bool Tokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() &&
         impl_->special[static_cast<size_t>(id)];
}

const std::string& Tokenizer::Piece(TokenId id) const {
  static const std::string kNone;
  if (id < 0 || static_cast<size_t>(id) >= impl_->spec.vocab.size()) return kNone;
  return impl_->spec.vocab[static_cast<size_t>(id)];
}

std::string_view Tokenizer::Bytes(TokenId id) const { return impl_->decode_plan.Bytes(id); }

TokenId Tokenizer::Find(std::string_view piece) const {
  const TokenId id = impl_->added_table.Find(piece);
  return id >= 0 ? id : impl_->model_table.Find(piece);
}

TokenId Tokenizer::bos_id() const { return impl_->spec.bos_id; }
TokenId Tokenizer::eos_id() const { return impl_->spec.eos_id; }
const TokenizerSpec& Tokenizer::spec() const { return impl_->spec; }
const DecodePlan& Tokenizer::decode_plan() const { return impl_->decode_plan; }

}  // namespace deepinfer
