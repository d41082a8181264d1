#include "text/grammar/token_trie.h"

#include <algorithm>

#include "text/grammar/code_point_dfa.h"
#include "text/grammar/grammar_machine.h"
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
  plain_.Create(mask_words_);
  for (size_t i = 0; i < token_bytes_.size(); ++i) {
    const std::string& text = token_bytes_[i];
    if (text.empty() || text.size() > kTokenBytesMax) continue;
    const auto id = static_cast<TokenId>(i);
    every.push_back(id);
    const uint32_t length = PlainLength(text);
    if (length == 0) {
      rest.push_back(id);
    } else {
      plain_.Insert(id, length);
    }
  }
  plain_.Finish();
  SortByQuote(every);
  all_ = BuildTree(token_bytes_, std::move(every));
  not_plain_ = BuildTree(token_bytes_, std::move(rest));
}

// Reads each token as the inside of any JSON string would.
void TokenTrie::SortByQuote(const std::vector<TokenId>& ids) {
  GrammarProgram program;
  program.automata.push_back(CodePointDfa::Anything());
  program.strings.push_back({0, 0, kUnbounded - 1});  // so that characters are counted
  program.values.push_back({{{JsonTypes::kString, 0}}, JsonTypes::kString});
  program.callees.push_back({GrammarCallee::Kind::kValue, 0, 0, 0});
  GrammarMachine machine(program);
  std::vector<FrameId> start;
  std::vector<FrameId> string;
  machine.Start(&start);
  machine.Step(start[0], '"', 0, &string);
  const GrammarMachine::Mark mark = machine.mark();
  inside_.Create(mask_words_);
  ends_.assign(mask_words_, 0);
  std::vector<TokenId> closing;
  std::vector<TokenId> inside;
  std::vector<TokenId> inside_rest;
  std::vector<TokenId> longer;
  std::vector<std::string> after(token_bytes_.size());
  std::vector<FrameId> now;
  for (const TokenId id : ids) {
    const std::string& text = token_bytes_[static_cast<size_t>(id)];
    FrameId top = string[0];
    size_t at = 0;
    uint32_t count = 0;
    bool alive = true;
    for (; at < text.size() && alive && top != GrammarMachine::kDone; ++at) {
      count = machine.frame(top).count;
      now.clear();
      machine.Step(top, static_cast<uint8_t>(text[at]), 0, &now);
      alive = !now.empty();
      if (alive) top = now[0];
    }
    if (alive && top == GrammarMachine::kDone) {
      closing.push_back(id);
      after[static_cast<size_t>(id)] = text.substr(at);
      before_quote_max_ = std::max(before_quote_max_, count);
      if (at == text.size()) Set(&ends_, id);
    } else if (alive) {
      const uint32_t length = machine.frame(top).count + (machine.frame(top).phase != 0 ? 1 : 0);
      inside_.Insert(id, length);
      (length > kCommonLength ? longer : inside).push_back(id);
      if (length <= kCommonLength && PlainLength(text) == 0) inside_rest.push_back(id);
    }
    machine.Release(mark);
  }
  inside_.Finish();
  closing_ = BuildTree(token_bytes_, closing);
  std::erase_if(closing, [&](TokenId id) { return after[static_cast<size_t>(id)].empty(); });
  after_quote_ = BuildTree(after, std::move(closing));
  inside_tree_ = BuildTree(token_bytes_, std::move(inside));
  inside_not_plain_ = BuildTree(token_bytes_, std::move(inside_rest));
  inside_long_ = BuildTree(token_bytes_, std::move(longer));
}

void TokenTrie::AddEnds(std::span<uint64_t> mask) const {
  for (size_t i = 0; i < ends_.size(); ++i) mask[i] |= ends_[i];
}

void TokenTrie::LengthMasks::Create(size_t words) {
  up_to_.assign(kLengths + 2, std::vector<uint64_t>(words, 0));
}

void TokenTrie::LengthMasks::Insert(TokenId id, uint32_t length) {
  if (length <= kLengths) {
    Set(&up_to_[length], id);
  } else {
    Set(&up_to_[kLengths + 1], id);
    longer_.emplace_back(length, id);
  }
}

// Makes each mask hold those before it.
void TokenTrie::LengthMasks::Finish() {
  for (uint32_t n = 1; n <= kLengths + 1; ++n) {
    for (size_t i = 0; i < up_to_[n].size(); ++i) up_to_[n][i] |= up_to_[n - 1][i];
  }
  std::sort(longer_.begin(), longer_.end());
}

void TokenTrie::LengthMasks::AddTo(uint32_t length, std::span<uint64_t> mask) const {
  const bool every = length >= (longer_.empty() ? kLengths : longer_.back().first);
  const std::vector<uint64_t>& base = up_to_[every ? kLengths + 1 : std::min(length, kLengths)];
  for (size_t i = 0; i < base.size(); ++i) mask[i] |= base[i];
  if (every || length <= kLengths) return;
  for (const auto& [size, id] : longer_) {
    if (size > length) break;
    mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
}

}  // namespace deepinfer
