// Finds added tokens in text: leftmost, then longest, as one automaton over all of them.
// Immutable after Build; Split is safe on any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace deepinfer {

// A stretch of text: one added token, or what stands between two.
struct TextPart {
  size_t begin = 0;
  size_t end = 0;
  TokenId id = -1;  // -1: ordinary text
};

class AddedTokenSet {
 public:
  // What `allowed` is asked about.
  struct Candidate {
    TokenId id;
    bool control;  // IsControlToken
    bool single_word, lstrip, rstrip;
  };

  // `contents[i]` is how tokens[i] appears in the text; empty ones are left out, and of equal
  // ones the first stays.
  void Build(std::span<const AddedToken> tokens, std::span<const std::string> contents);
  bool empty() const { return tokens_.empty(); }

  // Covers valid UTF-8 `text` with parts, none of them empty. A token counts only where
  // allowed(token, begin, end) says so.
  template <typename Allowed>
  void Split(std::string_view text, Allowed&& allowed, std::vector<TextPart>* parts) const {
    parts->clear();
    size_t done = 0;  // end of the last part
    for (size_t at = NextStart(text, 0); at < text.size(); at = NextStart(text, at)) {
      const Found found = LongestAt(text, at, allowed);
      if (found.token == nullptr) {
        ++at;
        continue;
      }
      if (IsWhole(*found.token, text, at, found.end)) {
        done = AddMatch(*found.token, text, at, found.end, done, parts);
      }
      at = found.end;
    }
    if (done < text.size()) parts->push_back({done, text.size(), -1});
  }

 private:
  struct Node {
    uint32_t first_child = 0;  // children of a node stand together, ordered by byte
    uint16_t children = 0;
    uint8_t byte = 0;
    int32_t token = -1;
  };
  struct Found {
    const Candidate* token = nullptr;
    size_t end = 0;
  };

  size_t NextStart(std::string_view text, size_t at) const;
  const Node* ChildOf(const Node& node, char byte) const;
  static bool IsWhole(const Candidate& token, std::string_view text, size_t begin, size_t end);
  static size_t AddMatch(const Candidate& token, std::string_view text, size_t begin, size_t end,
                         size_t done, std::vector<TextPart>* parts);

  template <typename Allowed>
  Found LongestAt(std::string_view text, size_t begin, Allowed&& allowed) const {
    Found found;
    const Node* node = nodes_.data();
    for (size_t at = begin; at < text.size();) {
      node = ChildOf(*node, text[at]);
      if (node == nullptr) break;
      ++at;
      if (node->token < 0) continue;
      const Candidate& token = tokens_[static_cast<size_t>(node->token)];
      if (allowed(token, begin, at)) found = {&token, at};
    }
    return found;
  }

  std::vector<Candidate> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
};

// Special, or spelled like markup (<think>, [INST]): such a token must not be made from text that
// a user wrote.
bool IsControlToken(const AddedToken& token);

}  // namespace deepinfer
