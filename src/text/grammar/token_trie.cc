#include "text/grammar/token_trie.h"

#include <algorithm>
#include <cstring>

#include "text/grammar/code_point_dfa.h"
#include "text/unicode.h"

namespace deepinfer {

namespace {

// Code points of `text` when all are plain, else 0.
uint32_t PlainLength(std::string_view text) {
  if (ValidUtf8Prefix(text) != text.size()) return 0;
  uint32_t count = 0;
  int length = 0;
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(length)) {
    if (!CodePointDfa::IsPlain(DecodeUtf8(text.data() + at, &length))) return 0;
    ++count;
  }
  return count;
}

TokenTrie::Tree BuildTree(const std::vector<std::string>& texts, std::vector<TokenId> ids) {
  std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    const int order = texts[static_cast<size_t>(a)].compare(texts[static_cast<size_t>(b)]);
    return order != 0 ? order < 0 : a < b;
  });
  TokenTrie::Tree tree;
  std::vector<uint32_t> path;  // open nodes
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      tree.nodes[path.back()].subtree_end = static_cast<uint32_t>(tree.nodes.size());
      path.pop_back();
    }
  };
  for (const TokenId id : ids) {
    const std::string& text = texts[static_cast<size_t>(id)];
    size_t common = 0;
    while (common < path.size() && common < text.size() &&
           tree.nodes[path[common]].byte == static_cast<uint8_t>(text[common])) {
      ++common;
    }
    close(common);
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(tree.nodes.size()));
      tree.nodes.push_back({0, static_cast<uint32_t>(tree.tokens.size()),
                            static_cast<uint8_t>(text[i]), static_cast<uint8_t>(i + 1)});
    }
    tree.tokens.push_back(id);
  }
  close(0);
  tree.nodes.push_back({0, static_cast<uint32_t>(tree.tokens.size()), 0, 0});
  return tree;
}

void Set(std::vector<uint64_t>* mask, TokenId id) {
  (*mask)[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

}  // namespace

TokenTrie::TokenTrie(const std::vector<std::string>& token_bytes)
    : token_bytes_(token_bytes), mask_words_((token_bytes.size() + 63) / 64) {
  std::vector<TokenId> every;
  std::vector<TokenId> rest;
  plain_up_to_.assign(kLengths + 2, std::vector<uint64_t>(mask_words_, 0));
  for (size_t i = 0; i < token_bytes_.size(); ++i) {
    const std::string& text = token_bytes_[i];
    if (text.empty() || text.size() > kTokenBytesMax) continue;
    const auto id = static_cast<TokenId>(i);
    every.push_back(id);
    const uint32_t length = PlainLength(text);
    if (length == 0) {
      rest.push_back(id);
      continue;
    }
    for (uint32_t n = length; n <= kLengths; ++n) Set(&plain_up_to_[n], id);
    Set(&plain_up_to_[kLengths + 1], id);
    if (length > kLengths) plain_long_.emplace_back(length, id);
  }
  std::sort(plain_long_.begin(), plain_long_.end());
  all_ = BuildTree(token_bytes_, std::move(every));
  rest_ = BuildTree(token_bytes_, std::move(rest));
}

void TokenTrie::CopyPlain(uint32_t length, uint64_t* mask) const {
  const bool every = plain_long_.empty() || length >= plain_long_.back().first;
  const uint32_t from = every ? kLengths + 1 : std::min(length, kLengths);
  std::memcpy(mask, plain_up_to_[from].data(), mask_words_ * sizeof(uint64_t));
  if (every || length <= kLengths) return;
  for (const auto& [size, id] : plain_long_) {
    if (size > length) break;
    mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
}

}  // namespace deepinfer
