// The Unigram model: the cut of a piece with the best sum of scores, by Viterbi over a trie.
// Built once, then immutable; EncodeWord is safe on any thread with a scratch of its own.
// The piece table must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/piece_table.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

class UnigramScratch {
 public:
  size_t bytes() const { return nodes_.capacity() * sizeof(Node); }

 private:
  friend class Unigram;
  struct Node {
    double score;     // best sum of a cut that ends here
    uint32_t length;  // of its last piece; 0: not reached
    TokenId id;
  };
  std::vector<Node> nodes_;
  std::vector<Node> path_;
};

class Unigram {
 public:
  static Result<std::unique_ptr<Unigram>> Build(const TokenizerSpec& spec, const PieceTable* table);
  // Appends the ids of one pre-tokenised piece, valid UTF-8.
  void EncodeWord(std::string_view word, UnigramScratch* scratch, std::vector<TokenId>* out) const;

 private:
  struct Edge {
    uint64_t key = UINT64_MAX;  // node << 8 | byte
    uint32_t child = 0;
  };
  void AddPiece(std::string_view piece, TokenId id);
  uint32_t ChildOf(uint32_t node, char byte) const;  // 0: none
  size_t SlotOf(uint64_t key) const;
  void Extend(std::string_view word, size_t start, std::vector<UnigramScratch::Node>* nodes) const;
  void EmitUnknown(std::string_view text, std::vector<TokenId>* out) const;

  const PieceTable* table_ = nullptr;
  std::vector<Edge> edges_;
  std::vector<TokenId> node_ids_;  // id of the piece that ends at a node, or -1
  std::vector<float> scores_;
  std::array<TokenId, 256> fallback_ids_{};
  double unk_score_ = 0;
  TokenId unk_id_ = -1;
  bool byte_fallback_ = false;
};

}  // namespace deepinfer
