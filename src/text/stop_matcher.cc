#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace deepinfer {

StopMatcher::StopMatcher(std::vector<std::string> stops, StopText stop_text)
    : stops_(std::move(stops)), stop_text_(stop_text) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  if (!stops_.empty()) Build();
}

// Breadth first over the sorted strings, so that a node's children stand together and every
// fallback is older than the node.
void StopMatcher::Build() {
  std::vector<size_t> order(stops_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return stops_[a] < stops_[b]; });
  struct Range {
    size_t begin, end;
  };
  nodes_.assign(1, Node{});
  std::vector<Range> ranges = {{0, order.size()}};
  for (size_t at = 0; at < nodes_.size(); ++at) {
    auto [begin, end] = ranges[at];
    const uint32_t depth = nodes_[at].length;
    const auto text = [&](size_t i) -> const std::string& { return stops_[order[i]]; };
    for (; begin < end && text(begin).size() == depth; ++begin) {
      nodes_[at].stop = static_cast<int32_t>(order[begin]);
    }
    nodes_[at].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const auto byte = static_cast<uint8_t>(text(begin)[depth]);
      size_t stop = begin;
      while (stop < end && static_cast<uint8_t>(text(stop)[depth]) == byte) ++stop;
      ++nodes_[at].children;
      Node child;
      child.byte = byte;
      child.length = depth + 1;
      nodes_.push_back(child);
      ranges.push_back({begin, stop});
      begin = stop;
    }
  }
  Link();
}

void StopMatcher::Link() {
  for (uint32_t parent = 0; parent < nodes_.size(); ++parent) {
    for (uint32_t i = 0; i < nodes_[parent].children; ++i) {
      Node& child = nodes_[nodes_[parent].first_child + i];
      child.fallback = parent == 0 ? 0 : Next(nodes_[parent].fallback, child.byte);
      if (child.stop < 0) child.stop = nodes_[child.fallback].stop;
    }
  }
}

int64_t StopMatcher::ChildOf(uint32_t node, uint8_t byte) const {
  const Node* begin = nodes_.data() + nodes_[node].first_child;
  const Node* end = begin + nodes_[node].children;
  const Node* found = std::lower_bound(
      begin, end, byte, [](const Node& child, uint8_t value) { return child.byte < value; });
  return found != end && found->byte == byte ? found - nodes_.data() : -1;
}

uint32_t StopMatcher::Next(uint32_t node, uint8_t byte) const {
  for (;;) {
    if (const int64_t child = ChildOf(node, byte); child >= 0) return static_cast<uint32_t>(child);
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

void StopMatcher::Push(std::string_view text, std::string* out) {
  if (matched()) return;
  if (nodes_.empty()) {
    out->append(text);
    return;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = Next(state_, static_cast<uint8_t>(text[i]));
    if (nodes_[state_].stop < 0) continue;
    match_ = nodes_[state_].stop;
    held_.append(text.substr(0, i + 1));
    if (stop_text_ == StopText::kExclude) held_.resize(held_.size() - match().size());
    out->append(held_);
    held_.clear();
    return;
  }
  held_.append(text);
  // A stop string starts with a whole character, so what is kept does too.
  const size_t safe = held_.size() - nodes_[state_].length;
  out->append(held_, 0, safe);
  held_.erase(0, safe);
}

void StopMatcher::PushUnmatched(std::string_view text, std::string* out) {
  if (matched()) return;
  out->append(held_).append(text);
  held_.clear();
  state_ = 0;
}

void StopMatcher::Finish(std::string* out) {
  out->append(held_);
  held_.clear();
  state_ = 0;
}

const std::string& StopMatcher::match() const {
  static const std::string kNone;
  return match_ < 0 ? kNone : stops_[static_cast<size_t>(match_)];
}

}  // namespace deepinfer
