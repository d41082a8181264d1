#include "text/grammar/mask_walker.h"

#include <algorithm>
#include <memory>

namespace deepinfer {

namespace {

constexpr uint64_t kInsideKeys = 0x1D2A;  // apart from the identities of programs

}  // namespace

const char* const MaskWalker::kOutOfSteps = "finding the tokens that may follow takes too long";

size_t MaskWalker::AddMask(FrameId top, std::span<uint64_t> mask) {
  const GrammarMachine::Mark before = machine_->mark();
  const GrammarFrame text = machine_->frame(top);
  levels_.resize(TokenTrie::kTokenBytesMax + 1);
  tops_.assign(1, top);
  SetStart(0, 1);
  const size_t cost = AddText(text, mask);
  machine_->Release(before);
  return cost;
}

size_t MaskWalker::AddText(const GrammarFrame& text, std::span<uint64_t> mask) {
  using Open = GrammarMachine::TextView::Open;
  const GrammarMachine::TextView view = machine_->ViewText(text, TokenTrie::kCommonLength);
  if (view.open == Open::kFull) {
    trie_->AddInside(view.room, mask);
    if (!view.may_end || view.room < trie_->before_quote_max()) {
      return Walk(trie_->closing(), mask);
    }
    // Whatever stands before the quote, what follows it is the same.
    trie_->AddEnds(mask);
    tops_.clear();
    machine_->EndText(text, &tops_);
    SetStart(0, tops_.size());
    return Walk(trie_->after_quote(), mask);
  }
  if (view.inside_key != 0) {
    size_t cost = AddInside(view, text, mask);
    cost += Walk(trie_->inside_long(), mask);
    return cost + Walk(trie_->closing(), mask);
  }
  if (view.open == Open::kNone) return Walk(trie_->all(), mask);
  trie_->AddPlain(view.room, mask);
  return Walk(trie_->not_plain(), mask);
}

// The common tokens that leave a string open do not depend on what surrounds it.
size_t MaskWalker::AddInside(const GrammarMachine::TextView& view, const GrammarFrame& text,
                             std::span<uint64_t> mask) {
  const Hash128 key{view.inside_key, kInsideKeys};
  MaskCache::Mask known = cache_->Find(key);
  size_t cost = 0;
  if (known == nullptr) {
    auto made = std::make_shared<std::vector<uint64_t>>(trie_->mask_words(), 0);
    cost = MakeInside(view, text, *made);
    known = std::move(made);
    if (machine_->steps() <= steps_max_) cache_->Insert(key, known);
  }
  if (!view.use_unlimited || view.room >= TokenTrie::kCommonLength) {
    for (size_t i = 0; i < known->size(); ++i) mask[i] |= (*known)[i];
    return cost;
  }
  std::vector<uint64_t> fitting(known->size(), 0);
  trie_->AddInside(view.room, fitting);
  for (size_t i = 0; i < known->size(); ++i) mask[i] |= (*known)[i] & fitting[i];
  return cost;
}

size_t MaskWalker::MakeInside(const GrammarMachine::TextView& view, const GrammarFrame& text,
                              std::span<uint64_t> mask) {
  const std::vector<FrameId> top = tops_;
  GrammarMachine::TextView now = view;
  if (view.use_unlimited) {
    GrammarFrame unlimited = text;
    unlimited.plan = view.unlimited;
    tops_.assign(1, machine_->MoveText(unlimited, text.state, text.count));
    now = machine_->ViewText(machine_->frame(tops_[0]), TokenTrie::kCommonLength);
    SetStart(0, 1);
  }
  size_t cost = 0;
  if (now.open == GrammarMachine::TextView::Open::kPlain) {
    trie_->AddPlain(std::min(now.room, TokenTrie::kCommonLength), mask);
    cost = Walk(trie_->inside_not_plain(), mask);
  } else {
    cost = Walk(trie_->inside(), mask);
  }
  tops_ = top;
  SetStart(0, 1);
  return cost;
}

size_t MaskWalker::Walk(const TokenTrie::Tree& tree, std::span<uint64_t> mask) {
  size_t cost = 0;
  for (size_t n = 0; n < tree.size(); ++cost) {
    const TokenTrie::Node& node = tree.nodes[n];
    if (machine_->steps() > steps_max_) {
      machine_->ReachLimit(kOutOfSteps);
      break;
    }
    if (!Advance(node.depth, node.byte)) {
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

void MaskWalker::SetStart(size_t begin, size_t end) {
  Level& start = levels_[0];
  start.begin = begin;
  start.end = end;
  start.mark = machine_->mark();
  MakeLight(0);
}

// Light only where a code point inside the text cannot end it as well.
void MaskWalker::MakeLight(uint32_t depth) {
  Level& level = levels_[depth];
  level.light = false;
  level.rule = nullptr;
  if (level.end - level.begin != 1) return;
  using Kind = GrammarFrame::Kind;
  const GrammarFrame& text = machine_->frame(tops_[level.begin]);
  level.rule = machine_->ViewNumber(text, &level.number);
  if (level.rule != nullptr) {
    level.light = true;
    level.anchor = depth;
    level.base = tops_[level.begin];
    return;
  }
  const bool alone = text.kind == Kind::kString || text.kind == Kind::kKey ||
                     (text.kind == Kind::kRule && text.parent == GrammarMachine::kDone &&
                      !machine_->AutomatonOf(text).has_calls());
  if (!alone || text.phase != 0) return;
  level.light = true;
  level.anchor = depth;
  level.base = tops_[level.begin];
  level.state = text.state;
  level.count = text.count;
  level.table = machine_->TableOf(text);
}

// From the level above `depth` to that at `depth`.
bool MaskWalker::Advance(uint32_t depth, uint8_t byte) {
  const Level& above = levels_[depth - 1];
  Level* to = &levels_[depth];
  if (above.rule != nullptr) {
    if ((byte >= '0' && byte <= '9') || byte == '.' || (byte | 0x20) == 'e' || byte == '-' ||
        byte == '+') {
      to->light = true;
      to->rule = above.rule;
      to->anchor = above.anchor;
      to->number = above.number;
      return above.rule->Step(static_cast<char>(byte), &to->number);
    }
  } else if (above.light) {
    const Level& anchor = levels_[above.anchor];
    if (anchor.table.Takes(byte)) {
      to->light = true;
      to->rule = nullptr;
      to->anchor = above.anchor;
      to->state = above.state;
      to->count = above.count;
      if (anchor.table.complete) return anchor.table.Advance(byte, &to->state, &to->count);
      return machine_->AdvanceText(machine_->frame(anchor.base), byte, &to->state, &to->count);
    }
  }
  const Level& from = above.light ? levels_[above.anchor] : above;
  machine_->Release(from.mark);
  tops_.resize(from.end);
  to->begin = from.end;
  if (above.light) {
    const GrammarFrame text = machine_->frame(from.base);
    const FrameId moved = above.rule != nullptr
                              ? machine_->MoveNumber(text, above.number)
                              : machine_->MoveText(text, above.state, above.count);
    machine_->Step(moved, byte, to->begin, &tops_);
  } else {
    for (size_t i = from.begin; i < from.end; ++i) {
      machine_->Step(tops_[i], byte, to->begin, &tops_);
    }
  }
  to->end = tops_.size();
  to->mark = machine_->mark();
  MakeLight(depth);
  return to->end > to->begin;
}

}  // namespace deepinfer
