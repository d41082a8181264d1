#include "text/grammar/mask_walker.h"

namespace deepinfer {

size_t MaskWalker::AddMask(FrameId top, std::span<uint64_t> mask) {
  const GrammarMachine::Mark before = machine_->mark();
  using Kind = GrammarFrame::Kind;
  text_ = machine_->frame(top);
  levels_.resize(TokenTrie::kTokenBytesMax + 1);
  tops_.assign(1, top);
  Level& start = levels_[0];
  start = {0, 1, before, false, text_.state, text_.count};
  // Light only where a code point inside the text cannot end it as well.
  const bool alone = text_.kind == Kind::kString || text_.kind == Kind::kKey ||
                     (text_.kind == Kind::kRule && text_.parent == GrammarMachine::kDone &&
                      !machine_->AutomatonOf(text_).has_calls());
  start.light = alone && text_.phase == 0;
  uint32_t length = 0;
  size_t cost = 0;
  if (machine_->IsOpen(text_, &length)) {
    std::vector<uint64_t> plain(trie_->mask_words());
    trie_->CopyPlain(length, plain.data());
    for (size_t i = 0; i < plain.size(); ++i) mask[i] |= plain[i];
    cost = Walk(trie_->rest(), mask);
  } else {
    cost = Walk(trie_->all(), mask);
  }
  machine_->Release(before);
  return cost;
}

size_t MaskWalker::Walk(const TokenTrie::Tree& tree, std::span<uint64_t> mask) {
  size_t cost = 0;
  for (size_t n = 0; n < tree.size(); ++cost) {
    const TokenTrie::Node& node = tree.nodes[n];
    Level& level = levels_[node.depth];
    if (!Advance(levels_[node.depth - 1], node.byte, &level)) {
      n = node.subtree_end;
      continue;
    }
    for (uint32_t t = node.tokens_begin; t < tree.nodes[n + 1].tokens_begin; ++t) {
      const auto id = static_cast<size_t>(tree.tokens[t]);
      mask[id / 64] |= uint64_t{1} << (id % 64);
    }
    ++n;
  }
  return cost;
}

bool MaskWalker::StaysLight(uint8_t byte) const {
  if (byte >= 0x80) return false;
  return text_.kind == GrammarFrame::Kind::kRule || (byte >= 0x20 && byte != '"' && byte != '\\');
}

bool MaskWalker::Advance(const Level& from, uint8_t byte, Level* to) {
  if (from.light && StaysLight(byte)) {
    to->state = from.state;
    to->count = from.count;
    if (!machine_->AdvanceText(text_, byte, &to->state, &to->count)) return false;
    to->light = true;
    to->mark = from.mark;
    to->begin = to->end = from.end;
    return true;
  }
  machine_->Release(from.mark);
  tops_.resize(from.end);
  to->light = false;
  to->begin = from.end;
  if (from.light) {
    const FrameId moved = machine_->MoveText(text_, from.state, from.count);
    machine_->Step(moved, byte, to->begin, &tops_);
  } else {
    for (size_t i = from.begin; i < from.end; ++i) {
      machine_->Step(tops_[i], byte, to->begin, &tops_);
    }
  }
  to->end = tops_.size();
  to->mark = machine_->mark();
  return to->end > to->begin;
}

}  // namespace deepinfer
