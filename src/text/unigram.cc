#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr double kUnkPenalty = 10.0;  // below the least score of the vocabulary
constexpr size_t kWordBytesMax = size_t{1} << 28;

}  // namespace

Result<std::unique_ptr<Unigram>> Unigram::Build(const TokenizerSpec& spec,
                                                const PieceTable* table) {
  auto unigram = std::make_unique<Unigram>();
  unigram->table_ = table;
  unigram->scores_ = spec.scores;
  unigram->unk_id_ = spec.unk_id;
  unigram->byte_fallback_ = spec.byte_fallback;
  double least = std::numeric_limits<double>::infinity();
  for (const float score : spec.scores) least = std::min(least, static_cast<double>(score));
  unigram->unk_score_ = least - kUnkPenalty;
  for (int byte = 0; byte < 256; ++byte) {
    unigram->fallback_ids_[static_cast<size_t>(byte)] =
        table->Find(FallbackPiece(static_cast<uint8_t>(byte)));
  }
  size_t bytes = 1;
  for (const std::string& piece : spec.vocab) bytes += piece.size();
  size_t slots = 16;
  while (slots < bytes + bytes / 2) slots *= 2;
  unigram->edges_.assign(slots, Edge{});
  unigram->node_ids_.push_back(-1);
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    unigram->AddPiece(spec.vocab[id], static_cast<TokenId>(id));
  }
  return unigram;
}

size_t Unigram::SlotOf(uint64_t key) const {
  const size_t mask = edges_.size() - 1;
  uint64_t hash = key * 0x9E3779B97F4A7C15U;
  hash ^= hash >> 32;
  size_t at = static_cast<size_t>(hash) & mask;
  while (edges_[at].key != key && edges_[at].key != UINT64_MAX) at = (at + 1) & mask;
  return at;
}

uint32_t Unigram::ChildOf(uint32_t node, char byte) const {
  return edges_[SlotOf((static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte))].child;
}

void Unigram::AddPiece(std::string_view piece, TokenId id) {
  if (piece.empty() || ValidUtf8Prefix(piece) != piece.size()) return;
  uint32_t node = 0;
  for (const char byte : piece) {
    const uint64_t key = (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
    Edge& edge = edges_[SlotOf(key)];
    if (edge.key == UINT64_MAX) {
      edge = {key, static_cast<uint32_t>(node_ids_.size())};
      node_ids_.push_back(-1);
    }
    node = edge.child;
  }
  if (node_ids_[node] < 0) node_ids_[node] = id;
}

void Unigram::Extend(std::string_view word, size_t start,
                     std::vector<UnigramScratch::Node>* nodes) const {
  const double so_far = (*nodes)[start].score;
  const auto offer = [&](size_t end, double score, TokenId id) {
    UnigramScratch::Node& node = (*nodes)[end];
    if (node.length != 0 && !(score > node.score)) return;
    node = {score, static_cast<uint32_t>(end - start), id};
  };
  const size_t character = start + static_cast<size_t>(Utf8Length(word[start]));
  bool has_single = false;
  uint32_t trie = 0;
  for (size_t end = start; end < word.size();) {
    trie = ChildOf(trie, word[end]);
    if (trie == 0) break;
    ++end;
    const TokenId id = node_ids_[trie];
    if (id < 0) continue;
    offer(end, static_cast<double>(scores_[static_cast<size_t>(id)]) + so_far, id);
    has_single = has_single || end == character;
  }
  if (!has_single) offer(character, unk_score_ + so_far, unk_id_);
}

void Unigram::EncodeWord(std::string_view word, UnigramScratch* scratch,
                         std::vector<TokenId>* out) const {
  while (word.size() > kWordBytesMax) {
    size_t cut = kWordBytesMax;
    while ((static_cast<uint8_t>(word[cut]) & 0xC0U) == 0x80) --cut;
    EncodeWord(word.substr(0, cut), scratch, out);
    word.remove_prefix(cut);
  }
  std::vector<UnigramScratch::Node>& nodes = scratch->nodes_;
  nodes.assign(word.size() + 1, {0.0, 0, -1});
  for (size_t at = 0; at < word.size(); at += static_cast<size_t>(Utf8Length(word[at]))) {
    Extend(word, at, &nodes);
  }
  std::vector<UnigramScratch::Node>& path = scratch->path_;
  path.clear();
  for (size_t end = word.size(); end > 0; end -= nodes[end].length) path.push_back(nodes[end]);
  size_t at = 0;
  while (!path.empty()) {
    // Neighbouring unknowns are one piece.
    size_t length = path.back().length;
    const TokenId id = path.back().id;
    path.pop_back();
    while (id == unk_id_ && !path.empty() && path.back().id == unk_id_) {
      length += path.back().length;
      path.pop_back();
    }
    if (id == unk_id_) {
      EmitUnknown(word.substr(at, length), out);
    } else {
      out->push_back(id);
    }
    at += length;
  }
}

void Unigram::EmitUnknown(std::string_view text, std::vector<TokenId>* out) const {
  if (const TokenId id = table_->Find(text); id >= 0) {
    out->push_back(id);
    return;
  }
  const auto fallback = [this](char c) { return fallback_ids_[static_cast<uint8_t>(c)]; };
  if (byte_fallback_ &&
      std::all_of(text.begin(), text.end(), [&](char c) { return fallback(c) >= 0; })) {
    for (const char c : text) out->push_back(fallback(c));
    return;
  }
  if (unk_id_ >= 0) out->push_back(unk_id_);
}

}  // namespace deepinfer
