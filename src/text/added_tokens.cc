#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "text/unicode.h"

namespace deepinfer {

bool IsControlToken(const AddedToken& token) {
  const std::string& content = token.content;
  if (token.special) return true;
  if (content.size() < 3) return false;
  return (content.front() == '<' && content.back() == '>') ||
         (content.front() == '[' && content.back() == ']');
}

void AddedTokenSet::Build(std::span<const AddedToken> tokens,
                          std::span<const std::string> contents) {
  std::vector<size_t> order;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!contents[i].empty()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return contents[a] < contents[b]; });
  nodes_.assign(1, Node{});
  // A node's range of `order` holds the tokens that share its prefix; breadth first, so that the
  // children of a node stand together.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, order.size(), 0}};
  for (size_t at = 0; at < nodes_.size(); ++at) {
    auto [begin, end, depth] = ranges[at];
    const auto content = [&](size_t i) -> const std::string& { return contents[order[i]]; };
    for (bool first = true; begin < end && content(begin).size() == depth; ++begin) {
      if (!first) continue;
      first = false;
      const AddedToken& token = tokens[order[begin]];
      nodes_[at].token = static_cast<int32_t>(tokens_.size());
      tokens_.push_back(
          {token.id, IsControlToken(token), token.single_word, token.lstrip, token.rstrip});
    }
    nodes_[at].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const auto byte = static_cast<uint8_t>(content(begin)[depth]);
      size_t stop = begin;
      while (stop < end && static_cast<uint8_t>(content(stop)[depth]) == byte) ++stop;
      ++nodes_[at].children;
      nodes_.push_back({0, 0, byte, -1});
      ranges.push_back({begin, stop, depth + 1});
      if (depth == 0) starts_[byte] = true;
      begin = stop;
    }
  }
}

size_t AddedTokenSet::NextStart(std::string_view text, size_t at) const {
  while (at < text.size() && !starts_[static_cast<uint8_t>(text[at])]) ++at;
  return at;
}

const AddedTokenSet::Node* AddedTokenSet::ChildOf(const Node& node, char byte) const {
  const Node* begin = nodes_.data() + node.first_child;
  const Node* end = begin + node.children;
  const auto wanted = static_cast<uint8_t>(byte);
  const Node* found = std::lower_bound(
      begin, end, wanted, [](const Node& child, uint8_t value) { return child.byte < value; });
  return found != end && found->byte == wanted ? found : nullptr;
}

bool AddedTokenSet::IsWhole(const Candidate& token, std::string_view text, size_t begin,
                            size_t end) {
  if (!token.single_word) return true;
  int length = 0;
  const auto is_word = [&](size_t at) {
    return (CharClassAt(text.data() + at, &length) & CharClass::kWord) != 0;
  };
  if (begin > 0 && is_word(PreviousUtf8Start(text, begin))) return false;
  return end == text.size() || !is_word(end);
}

size_t AddedTokenSet::AddMatch(const Candidate& token, std::string_view text, size_t begin,
                               size_t end, size_t done, std::vector<TextPart>* parts) {
  int length = 0;
  const auto is_space = [&](size_t at) {
    return (CharClassAt(text.data() + at, &length) & CharClass::kSpace) != 0;
  };
  while (token.lstrip && begin > done) {
    const size_t previous = PreviousUtf8Start(text, begin);
    if (!is_space(previous)) break;
    begin = previous;
  }
  while (token.rstrip && end < text.size() && is_space(end)) end += static_cast<size_t>(length);
  if (done < begin) parts->push_back({done, begin, -1});
  parts->push_back({begin, end, token.id});
  return end;
}

}  // namespace deepinfer
