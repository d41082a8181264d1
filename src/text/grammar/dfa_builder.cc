#include "text/grammar/dfa_builder.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/hash.h"

namespace deepinfer {

namespace {

constexpr size_t kSetsMax = 1500;

struct NfaState {
  enum class Kind : uint8_t { kSplit, kSet, kCall, kBegin, kEnd, kAccept };
  Kind kind = Kind::kSplit;
  uint32_t value = 0;  // of kSet: index of the set; of kCall: the callee
  std::vector<uint32_t> to;
};

// Thompson's construction, from the end backwards: each piece knows where it continues.
class NfaBuilder {
 public:
  NfaBuilder(const SyntaxTree& tree, size_t states_max, WorkBudget* budget)
      : tree_(tree), states_max_(states_max), budget_(budget) {}

  // The entry of `id` followed by `next`.
  uint32_t Build(SyntaxId id, uint32_t next) {
    const SyntaxNode& node = tree_.node(id);
    if (full_ || !budget_->Spend(1)) {
      full_ = true;
      return 0;
    }
    switch (node.kind) {
      case SyntaxNode::Kind::kSequence:
        for (size_t i = node.parts.size(); i-- > 0;) next = Build(node.parts[i], next);
        return next;
      case SyntaxNode::Kind::kAlternate: {
        std::vector<uint32_t> to;
        for (const SyntaxId part : node.parts) to.push_back(Build(part, next));
        return Add({NfaState::Kind::kSplit, 0, std::move(to)});
      }
      case SyntaxNode::Kind::kSet:
        return Add({NfaState::Kind::kSet, SetIndex(node.set), {next}});
      case SyntaxNode::Kind::kRepeat:
        return BuildRepeat(node, next);
      case SyntaxNode::Kind::kBegin:
        return Add({NfaState::Kind::kBegin, 0, {next}});
      case SyntaxNode::Kind::kEnd:
        return Add({NfaState::Kind::kEnd, 0, {next}});
      case SyntaxNode::Kind::kCall:
        return Add({NfaState::Kind::kCall, node.callee, {next}});
    }
    return next;
  }

  uint32_t Add(NfaState state) {
    if (states.size() >= states_max_ || !budget_->Spend(1)) {
      full_ = true;
      return 0;
    }
    states.push_back(std::move(state));
    return static_cast<uint32_t>(states.size() - 1);
  }

  uint32_t SetIndex(const CodePointSet& set) {
    for (size_t i = 0; i < sets.size(); ++i) {
      if (sets[i] == set) return static_cast<uint32_t>(i);
    }
    sets.push_back(set);
    return static_cast<uint32_t>(sets.size() - 1);
  }

  bool full() const { return full_; }

  std::vector<NfaState> states;
  std::vector<CodePointSet> sets;

 private:
  uint32_t BuildRepeat(const SyntaxNode& node, uint32_t next) {
    const SyntaxId part = node.parts[0];
    if (node.max == kUnbounded) {
      const uint32_t loop = Add({NfaState::Kind::kSplit, 0, {next}});
      const uint32_t body = Build(part, loop);
      if (full_) return 0;
      states[loop].to.push_back(body);
      next = loop;
    } else {
      const uint32_t last = next;
      for (uint32_t i = node.min; i < node.max && !full_; ++i) {
        const uint32_t body = Build(part, next);
        next = Add({NfaState::Kind::kSplit, 0, {body, last}});
      }
    }
    for (uint32_t i = 0; i < node.min && !full_; ++i) next = Build(part, next);
    return next;
  }

  const SyntaxTree& tree_;
  const size_t states_max_;
  WorkBudget* budget_;
  bool full_ = false;
};

struct VectorHash {
  size_t operator()(const std::vector<uint32_t>& value) const {
    return HashBytes64(value.data(), value.size() * sizeof(uint32_t));
  }
};

class SubsetBuilder {
 public:
  SubsetBuilder(const NfaBuilder& nfa, size_t states_max, WorkBudget* budget)
      : nfa_(nfa),
        states_max_(states_max),
        budget_(budget),
        dfa_(PartitionCodePoints(nfa.sets, &classes_of_)),
        seen_(nfa.states.size(), 0) {}

  Result<CodePointDfa> Build(uint32_t start) {
    dfa_.AddState();
    calls_.emplace_back();
    Intern(Closure({start}, Place::kBegin), Place::kBegin);
    for (uint32_t state = CodePointDfa::kStart; state < kernels_.size() + 1; ++state) {
      if (!Expand(state)) {
        return budget_->spent() ? WorkBudget::Error()
                                : Invalid(Format("the expression needs more than {} automaton "
                                                 "states or too large a table: make it simpler",
                                                 states_max_));
      }
    }
    if (has_calls_) dfa_.SetCalls(std::move(calls_));
    dfa_.Finish();
    return std::move(dfa_);
  }

 private:
  enum class Place { kBegin, kInside, kEnd };

  // The states that consume, call, accept or wait for the end, sorted.
  std::vector<uint32_t> Closure(std::vector<uint32_t> work, Place place) {
    ++stamp_;
    std::vector<uint32_t> kernel;
    for (const uint32_t state : work) seen_[state] = stamp_;
    while (!work.empty()) {
      const uint32_t at = work.back();
      work.pop_back();
      const NfaState& state = nfa_.states[at];
      const bool passes = state.kind == NfaState::Kind::kSplit ||
                          (state.kind == NfaState::Kind::kBegin && place == Place::kBegin) ||
                          (state.kind == NfaState::Kind::kEnd && place == Place::kEnd);
      if (!passes) {
        if (state.kind != NfaState::Kind::kBegin) kernel.push_back(at);
        continue;
      }
      for (const uint32_t to : state.to) {
        if (seen_[to] == stamp_) continue;
        seen_[to] = stamp_;
        work.push_back(to);
      }
    }
    std::sort(kernel.begin(), kernel.end());
    return kernel;
  }

  // Acceptance: now, or through $ at the end (and ^ where nothing was read).
  bool Accepts(const std::vector<uint32_t>& kernel, Place place) {
    ++stamp_;
    std::vector<uint32_t> work = kernel;
    while (!work.empty()) {
      const uint32_t at = work.back();
      work.pop_back();
      if (seen_[at] == stamp_) continue;
      seen_[at] = stamp_;
      const NfaState& state = nfa_.states[at];
      if (state.kind == NfaState::Kind::kAccept) return true;
      if (state.kind == NfaState::Kind::kEnd || state.kind == NfaState::Kind::kSplit ||
          (state.kind == NfaState::Kind::kBegin && place == Place::kBegin)) {
        work.insert(work.end(), state.to.begin(), state.to.end());
      }
    }
    return false;
  }

  uint32_t Intern(std::vector<uint32_t> kernel, Place place) {
    if (kernel.empty() && place != Place::kBegin) return CodePointDfa::kDead;
    // The start differs from an equal later set: only there ^ before $ holds.
    if (place == Place::kInside) {
      if (const auto found = ids_.find(kernel); found != ids_.end()) return found->second;
    }
    const uint32_t id = dfa_.AddState();
    calls_.emplace_back();
    if (Accepts(kernel, place)) dfa_.SetLabel(id, 1);
    if (place == Place::kInside) ids_.emplace(kernel, id);
    kernels_.push_back(std::move(kernel));
    return id;
  }

  bool Expand(uint32_t id) {
    std::vector<std::vector<uint32_t>> targets(dfa_.num_classes());
    const std::vector<uint32_t> kernel = kernels_[id - 1];
    for (const uint32_t at : kernel) {
      const NfaState& state = nfa_.states[at];
      if (state.kind == NfaState::Kind::kSet) {
        for (const uint32_t c : classes_of_[state.value]) targets[c].push_back(state.to[0]);
        if (!budget_->Spend(static_cast<int64_t>(classes_of_[state.value].size()))) return false;
      } else if (state.kind == NfaState::Kind::kCall) {
        has_calls_ = true;
        const uint32_t target = Intern(Closure(state.to, Place::kInside), Place::kInside);
        calls_[id].push_back({state.value, target});
      }
    }
    std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> known;
    for (uint32_t c = 0; c < targets.size(); ++c) {
      if (targets[c].empty()) continue;
      std::sort(targets[c].begin(), targets[c].end());
      targets[c].erase(std::unique(targets[c].begin(), targets[c].end()), targets[c].end());
      const auto [entry, is_new] = known.try_emplace(targets[c], 0);
      if (is_new) {
        std::vector<uint32_t> next = Closure(targets[c], Place::kInside);
        if (!budget_->Spend(static_cast<int64_t>(next.size() + dfa_.num_classes()))) return false;
        entry->second = Intern(std::move(next), Place::kInside);
        if (dfa_.num_states() > states_max_ ||
            size_t{dfa_.num_states()} * dfa_.num_classes() > CodePointDfa::kTableMax) {
          return false;
        }
      }
      dfa_.SetNext(id, c, entry->second);
    }
    return true;
  }

  const NfaBuilder& nfa_;
  const size_t states_max_;
  WorkBudget* budget_;
  std::vector<std::vector<uint32_t>> classes_of_;
  CodePointDfa dfa_;
  std::vector<std::vector<uint32_t>> kernels_;  // of DFA state i + 1
  std::vector<std::vector<CodePointDfa::Call>> calls_;
  std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> ids_;
  std::vector<uint32_t> seen_;
  uint32_t stamp_ = 0;
  bool has_calls_ = false;
};

}  // namespace

Result<CodePointDfa> BuildDfa(const SyntaxTree& tree, SyntaxId root, const DfaBuildOptions& options,
                              WorkBudget* budget) {
  NfaBuilder nfa(tree, options.states_max, budget);
  uint32_t accept = nfa.Add({NfaState::Kind::kAccept, 0, {}});
  const bool search = options.match == DfaBuildOptions::Match::kSearch;
  if (search) {
    // Anything may follow the match.
    const uint32_t any = nfa.SetIndex(CodePointSet::All());
    const uint32_t split = nfa.Add({NfaState::Kind::kSplit, 0, {accept}});
    const uint32_t loop = nfa.Add({NfaState::Kind::kSet, any, {split}});
    if (!nfa.full()) nfa.states[split].to.push_back(loop);
    accept = split;
  }
  uint32_t start = nfa.Build(root, accept);
  if (search) {
    const uint32_t any = nfa.SetIndex(CodePointSet::All());
    const uint32_t split = nfa.Add({NfaState::Kind::kSplit, 0, {start}});
    const uint32_t loop = nfa.Add({NfaState::Kind::kSet, any, {split}});
    if (!nfa.full()) nfa.states[split].to.push_back(loop);
    start = split;
  }
  if (nfa.full()) {
    if (budget->spent()) return WorkBudget::Error();
    return Invalid(
        Format("the expression unrolls to more than {} states: lower its repetition "
               "counts",
               options.states_max));
  }
  if (nfa.sets.size() > kSetsMax) {
    return Invalid(Format("the expression has {} different character classes, at most {} are taken",
                          nfa.sets.size(), kSetsMax));
  }
  return SubsetBuilder(nfa, options.states_max, budget).Build(start);
}

}  // namespace deepinfer
