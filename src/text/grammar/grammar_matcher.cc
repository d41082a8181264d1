#include "text/grammar/grammar_matcher.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <vector>

#include "text/grammar/grammar_machine.h"
#include "text/grammar/mask_cache.h"
#include "text/grammar/mask_walker.h"
#include "text/grammar/token_trie.h"

namespace deepinfer {

namespace {

constexpr size_t kGarbageMax = 16384;      // frames beyond twice the live ones
constexpr int64_t kMaskSteps = 4'000'000;  // some hundred milliseconds: far beyond any honest mask
constexpr size_t kCachedCost = 64;         // trie nodes: a cheaper mask is made anew

}  // namespace

struct GrammarMatcher::Impl {
  struct Past {
    std::vector<FrameId> tops;
    bool terminated = false;
  };

  Impl(std::shared_ptr<const CompiledGrammar> compiled,
       std::shared_ptr<const GrammarVocabulary> tokens, int back)
      : grammar(std::move(compiled)),
        vocabulary(std::move(tokens)),
        rollback_max(static_cast<size_t>(std::max(back, 0))),
        machine(grammar->program()),
        walker(&machine, vocabulary == nullptr ? nullptr : &vocabulary->trie(),
               vocabulary == nullptr ? nullptr : &vocabulary->cache()) {
    machine.Start(&tops);
  }

  // The tops after `bytes`, or false. `consumed` is how far they went.
  bool Advance(std::string_view bytes, std::vector<FrameId>* now, size_t* consumed) {
    std::vector<FrameId> next;
    for (*consumed = 0; *consumed < bytes.size(); ++*consumed) {
      next.clear();
      for (const FrameId top : *now) {
        machine.Step(top, static_cast<uint8_t>(bytes[*consumed]), 0, &next);
      }
      if (next.empty()) return false;
      now->swap(next);
    }
    return true;
  }

  void Commit(std::vector<FrameId> next, bool ended) {
    past.push_back({std::move(tops), terminated});
    if (past.size() > rollback_max) past.pop_front();
    tops = std::move(next);
    terminated = ended;
    ++accepted;
    if (machine.mark().frames > 2 * live + kGarbageMax) Compact();
  }

  void Compact() {
    std::vector<FrameId*> every;
    for (FrameId& top : tops) every.push_back(&top);
    for (Past& entry : past) {
      for (FrameId& top : entry.tops) every.push_back(&top);
    }
    machine.Compact(every);
    live = machine.mark().frames;
  }

  bool Complete() {
    return std::any_of(tops.begin(), tops.end(),
                       [&](FrameId top) { return machine.CanFinish(top); });
  }

  bool OutOfSteps() const { return machine.limit_reached() == MaskWalker::kOutOfSteps; }
  bool MaskOf(std::span<uint64_t> mask);
  void MaskOfTop(FrameId top, std::span<uint64_t> mask);

  std::shared_ptr<const CompiledGrammar> grammar;       // shared with the builder's cache
  std::shared_ptr<const GrammarVocabulary> vocabulary;  // shared by all matchers
  const size_t rollback_max;
  GrammarMachine machine;
  MaskWalker walker;
  std::vector<FrameId> tops;
  std::deque<Past> past;
  bool terminated = false;
  int accepted = 0;
  size_t live = 0;
};

void GrammarMatcher::Impl::MaskOfTop(FrameId top, std::span<uint64_t> mask) {
  const Hash128 key{machine.frame(top).class_hash, grammar->program().identity};
  const size_t words = vocabulary->trie().mask_words();
  if (const MaskCache::Mask cached = vocabulary->cache().Find(key)) {
    for (size_t i = 0; i < words; ++i) mask[i] |= (*cached)[i];
    return;
  }
  if (tops.size() == 1) {
    if (walker.AddMask(top, mask) < kCachedCost || OutOfSteps()) return;
    vocabulary->cache().Insert(
        key, std::make_shared<const std::vector<uint64_t>>(
                 mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(words)));
    return;
  }
  auto own = std::make_shared<std::vector<uint64_t>>(words, 0);
  const size_t cost = walker.AddMask(top, *own);
  for (size_t i = 0; i < words; ++i) mask[i] |= (*own)[i];
  if (cost >= kCachedCost && !OutOfSteps()) vocabulary->cache().Insert(key, std::move(own));
}

bool GrammarMatcher::Impl::MaskOf(std::span<uint64_t> mask) {
  std::fill(mask.begin(), mask.end(), uint64_t{0});
  if (terminated) return false;
  walker.GrantSteps(kMaskSteps);
  for (const FrameId top : tops) MaskOfTop(top, mask);
  if (OutOfSteps()) {
    std::fill(mask.begin(), mask.end(), uint64_t{0});
    return false;
  }
  if (Complete()) {
    for (const TokenId id : vocabulary->stop_ids()) {
      mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    }
  }
  return std::any_of(mask.begin(), mask.end(), [](uint64_t word) { return word != 0; });
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar,
                               std::shared_ptr<const GrammarVocabulary> vocabulary,
                               int rollback_max)
    : impl_(std::make_unique<Impl>(std::move(grammar), std::move(vocabulary), rollback_max)) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

bool GrammarMatcher::FillMask(std::span<uint64_t> mask) { return impl_->MaskOf(mask); }

size_t GrammarMatcher::FillDraftMasks(std::span<const TokenId> draft, std::span<uint64_t> masks) {
  const size_t words = impl_->vocabulary->mask_words();
  const std::vector<FrameId> tops = impl_->tops;
  const GrammarMachine::Mark mark = impl_->machine.mark();
  const bool terminated = impl_->terminated;
  size_t rows = 0;
  for (; rows <= draft.size() && (rows + 1) * words <= masks.size();) {
    impl_->MaskOf(masks.subspan(rows * words, words));
    ++rows;
    if (rows > draft.size()) break;
    const TokenId id = draft[rows - 1];
    if (!Allows(id)) break;
    if (impl_->vocabulary->IsStop(id)) {
      impl_->terminated = true;
      continue;
    }
    size_t consumed = 0;
    impl_->Advance(impl_->vocabulary->trie().bytes(id), &impl_->tops, &consumed);
  }
  impl_->tops = tops;
  impl_->terminated = terminated;
  impl_->machine.Release(mark);
  return rows;
}

bool GrammarMatcher::Allows(TokenId id) {
  Impl& impl = *impl_;
  if (impl.terminated || id < 0 || id >= impl.vocabulary->size()) return false;
  if (impl.vocabulary->IsStop(id)) return impl.Complete();
  const std::string_view bytes = impl.vocabulary->trie().bytes(id);
  if (bytes.empty() || bytes.size() > TokenTrie::kTokenBytesMax) return false;
  const GrammarMachine::Mark mark = impl.machine.mark();
  std::vector<FrameId> tops = impl.tops;
  size_t consumed = 0;
  const bool allowed = impl.Advance(bytes, &tops, &consumed);
  impl.machine.Release(mark);
  return allowed;
}

bool GrammarMatcher::Accept(TokenId id) {
  Impl& impl = *impl_;
  if (impl.terminated || id < 0 || id >= impl.vocabulary->size()) return false;
  if (impl.vocabulary->IsStop(id)) {
    if (!impl.Complete()) return false;
    impl.Commit(impl.tops, true);
    return true;
  }
  const std::string_view bytes = impl.vocabulary->trie().bytes(id);
  if (bytes.empty() || bytes.size() > TokenTrie::kTokenBytesMax) return false;
  const GrammarMachine::Mark mark = impl.machine.mark();
  std::vector<FrameId> next = impl.tops;
  size_t consumed = 0;
  if (!impl.Advance(bytes, &next, &consumed)) {
    impl.machine.Release(mark);
    return false;
  }
  impl.Commit(std::move(next), false);
  return true;
}

bool GrammarMatcher::Rollback(int tokens) {
  Impl& impl = *impl_;
  if (tokens < 0 || static_cast<size_t>(tokens) > impl.past.size()) return false;
  for (int i = 0; i < tokens; ++i) {
    impl.tops = std::move(impl.past.back().tops);
    impl.terminated = impl.past.back().terminated;
    impl.past.pop_back();
    --impl.accepted;
  }
  return true;
}

int GrammarMatcher::accepted() const { return impl_->accepted; }
bool GrammarMatcher::IsComplete() const { return impl_->terminated || impl_->Complete(); }
bool GrammarMatcher::IsTerminated() const { return impl_->terminated; }

bool GrammarMatcher::IsDead() const {
  if (impl_->terminated || impl_->Complete()) return false;
  std::vector<FrameId> next;
  const GrammarMachine::Mark mark = impl_->machine.mark();
  for (int byte = 0; byte < 256 && next.empty(); ++byte) {
    for (const FrameId top : impl_->tops) {
      impl_->machine.Step(top, static_cast<uint8_t>(byte), 0, &next);
    }
  }
  impl_->machine.Release(mark);
  return next.empty();
}

std::string GrammarMatcher::ForcedBytes(size_t bytes_max) {
  Impl& impl = *impl_;
  std::string forced;
  if (impl.terminated) return forced;
  const GrammarMachine::Mark mark = impl.machine.mark();
  const std::vector<FrameId> saved = impl.tops;
  while (forced.size() < bytes_max && !impl.Complete()) {
    std::vector<FrameId> only;
    int choices = 0;
    char chosen = 0;
    for (int byte = 0; byte < 256 && choices < 2; ++byte) {
      std::vector<FrameId> next;
      for (const FrameId top : impl.tops) {
        impl.machine.Step(top, static_cast<uint8_t>(byte), 0, &next);
      }
      if (next.empty()) continue;
      ++choices;
      chosen = static_cast<char>(byte);
      only = std::move(next);
    }
    if (choices != 1) break;
    forced += chosen;
    impl.tops = std::move(only);
  }
  impl.tops = saved;
  impl.machine.Release(mark);
  return forced;
}

TokenId GrammarMatcher::ForcedToken() {
  std::vector<uint64_t> mask(impl_->vocabulary->mask_words());
  if (!FillMask(mask)) return -1;
  TokenId found = -1;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    if (found >= 0 || std::popcount(mask[i]) > 1) return -1;
    found = static_cast<TokenId>(i * 64 + static_cast<size_t>(std::countr_zero(mask[i])));
  }
  return found;
}

size_t GrammarMatcher::AcceptText(std::string_view text) {
  Impl& impl = *impl_;
  if (impl.terminated) return 0;
  std::vector<FrameId> next = impl.tops;
  size_t done = 0;
  // In pieces, so that what is no longer needed goes in between.
  constexpr size_t kPiece = 1024;
  std::vector<FrameId> before = impl.tops;
  bool going = true;
  while (going && done < text.size()) {
    size_t consumed = 0;
    going = impl.Advance(text.substr(done, kPiece), &impl.tops, &consumed);
    done += consumed;
    if (impl.machine.mark().frames > 2 * impl.live + kGarbageMax) {
      impl.past.push_back({std::move(before), false});
      impl.Compact();
      before = std::move(impl.past.back().tops);
      impl.past.pop_back();
    }
  }
  next = std::move(impl.tops);
  impl.tops = std::move(before);
  impl.Commit(std::move(next), false);
  return done;
}

const char* GrammarMatcher::limit_reached() const { return impl_->machine.limit_reached(); }
const CompiledGrammar& GrammarMatcher::grammar() const { return *impl_->grammar; }
const GrammarVocabulary* GrammarMatcher::vocabulary() const { return impl_->vocabulary.get(); }

}  // namespace deepinfer
