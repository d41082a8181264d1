#include "text/grammar/code_point_dfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/format.h"
#include "base/hash.h"
#include "text/unicode.h"

namespace deepinfer {

CodePointDfa::CodePointDfa(std::vector<ClassStart> class_starts)
    : class_starts_(std::move(class_starts)) {
  for (const ClassStart& start : class_starts_) {
    num_classes_ = std::max(num_classes_, start.class_id + 1);
  }
  for (char32_t cp = 0; cp < 128; ++cp) ascii_[cp] = ClassBeyondAscii(cp);
}

uint32_t CodePointDfa::ClassBeyondAscii(char32_t cp) const {
  const auto after =
      std::upper_bound(class_starts_.begin(), class_starts_.end(), cp,
                       [](char32_t value, const ClassStart& start) { return value < start.first; });
  return (after - 1)->class_id;
}

CodePointDfa CodePointDfa::Anything() {
  CodePointDfa dfa({{0, 0}});
  dfa.AddState();
  const uint32_t start = dfa.AddState();
  dfa.SetNext(start, 0, start);
  dfa.SetLabel(start, 1);
  dfa.Finish();
  return dfa;
}

Result<CodePointDfa> CodePointDfa::OfTexts(std::span<const std::string> texts) {
  std::vector<char32_t> used;
  size_t total = 0;
  std::vector<std::u32string> decoded(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    int length = 0;
    for (size_t at = 0; at < texts[i].size(); at += static_cast<size_t>(length)) {
      decoded[i].push_back(DecodeUtf8(texts[i].data() + at, &length));
    }
    used.insert(used.end(), decoded[i].begin(), decoded[i].end());
    total += decoded[i].size();
  }
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  if ((total + 2) * (used.size() + 1) > kTableMax) {
    return Invalid(Format("{} texts with {} different characters are too many to choose from",
                          texts.size(), used.size()));
  }
  std::vector<ClassStart> starts = {{0, 0}};
  uint32_t next_class = 1;
  for (const char32_t cp : used) {
    if (starts.back().first == cp) starts.pop_back();
    starts.push_back({cp, next_class++});
    if (cp < kCodePointMax) starts.push_back({cp + 1, 0});
  }
  CodePointDfa dfa(std::move(starts));
  dfa.AddState();
  dfa.AddState();
  for (size_t i = 0; i < decoded.size(); ++i) {
    uint32_t state = kStart;
    for (const char32_t cp : decoded[i]) {
      uint32_t next = dfa.Next(state, cp);
      if (next == kDead) {
        next = dfa.AddState();
        dfa.SetNext(state, dfa.ClassOf(cp), next);
      }
      state = next;
    }
    if (dfa.label(state) == 0) dfa.SetLabel(state, static_cast<uint32_t>(i + 1));
  }
  dfa.Finish();
  return dfa;
}

bool CodePointDfa::LeadsOn(uint32_t state, char32_t first, char32_t last) const {
  constexpr char32_t kSurrogateFirst = 0xD800;
  constexpr char32_t kSurrogateLast = 0xDFFF;
  auto at =
      std::upper_bound(class_starts_.begin(), class_starts_.end(), first,
                       [](char32_t value, const ClassStart& start) { return value < start.first; });
  for (--at; at != class_starts_.end() && at->first <= last; ++at) {
    if (NextOfClass(state, at->class_id) == kDead) continue;
    char32_t low = std::max(at->first, first);
    char32_t high = at + 1 == class_starts_.end() ? kCodePointMax : (at + 1)->first - 1;
    high = std::min(high, last);
    if (low < kSurrogateFirst || high > kSurrogateLast) return true;
  }
  return false;
}

uint32_t CodePointDfa::AddState() {
  next_.resize(next_.size() + num_classes_, kDead);
  labels_.push_back(0);
  return static_cast<uint32_t>(labels_.size() - 1);
}

void CodePointDfa::SetCalls(std::vector<std::vector<Call>> calls) {
  calls_.clear();
  call_begin_.clear();
  for (const std::vector<Call>& of_state : calls) {
    call_begin_.push_back(static_cast<uint32_t>(calls_.size()));
    calls_.insert(calls_.end(), of_state.begin(), of_state.end());
  }
  call_begin_.push_back(static_cast<uint32_t>(calls_.size()));
}

bool CodePointDfa::Finish() {
  const bool accepts = RemoveDead();
  if (calls_.empty()) ComputeLengths();
  ComputeOpen();
  leads_on_.assign(num_states(), 0);
  for (uint32_t state = 1; state < num_states(); ++state) {
    leads_on_[state] = LeadsOn(state, 0, kCodePointMax) ? 1 : 0;
  }
  ComputeHash();
  return accepts;
}

bool CodePointDfa::RemoveDead() {
  const uint32_t n = num_states();
  std::vector<std::vector<uint32_t>> from(n);
  for (uint32_t state = 1; state < n; ++state) {
    uint32_t last = kDead;
    for (uint32_t c = 0; c < num_classes_; ++c) {
      const uint32_t target = NextOfClass(state, c);
      if (target != kDead && target != last) from[target].push_back(state);
      last = target;
    }
    for (const Call& call : calls(state)) from[call.target].push_back(state);
  }
  std::vector<uint8_t> live(n, 0);
  std::vector<uint32_t> work;
  for (uint32_t state = 1; state < n; ++state) {
    if (labels_[state] == 0) continue;
    live[state] = 1;
    work.push_back(state);
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t before : from[state]) {
      if (live[before] == 0) {
        live[before] = 1;
        work.push_back(before);
      }
    }
  }
  std::vector<uint32_t> renamed(n, kDead);
  uint32_t count = 1;
  for (uint32_t state = 1; state < n; ++state) {
    if (live[state] != 0 || state == kStart) renamed[state] = count++;
  }
  std::vector<uint32_t> next(size_t{count} * num_classes_, kDead);
  std::vector<uint32_t> labels(count, 0);
  std::vector<std::vector<Call>> kept(count);
  for (uint32_t state = 1; state < n; ++state) {
    const uint32_t to = renamed[state];
    if (to == kDead) continue;
    labels[to] = labels_[state];
    for (uint32_t c = 0; c < num_classes_; ++c) {
      const uint32_t target = NextOfClass(state, c);
      next[size_t{to} * num_classes_ + c] = live[target] != 0 ? renamed[target] : kDead;
    }
    for (const Call& call : calls(state)) {
      if (live[call.target] != 0) kept[to].push_back({call.callee, renamed[call.target]});
    }
  }
  next_ = std::move(next);
  labels_ = std::move(labels);
  if (!calls_.empty()) SetCalls(std::move(kept));
  return live[kStart] != 0;
}

void CodePointDfa::ComputeLengths() {
  const uint32_t n = num_states();
  shortest_max_ = 0;
  shortest_.assign(n, kInfinite);
  longest_.assign(n, 0);
  std::vector<std::vector<uint32_t>> to(n);
  std::vector<std::vector<uint32_t>> from(n);
  for (uint32_t state = 1; state < n; ++state) {
    for (uint32_t c = 0; c < num_classes_; ++c) {
      if (NextOfClass(state, c) != kDead) to[state].push_back(NextOfClass(state, c));
    }
    std::sort(to[state].begin(), to[state].end());
    to[state].erase(std::unique(to[state].begin(), to[state].end()), to[state].end());
    for (const uint32_t target : to[state]) from[target].push_back(state);
  }
  std::vector<uint32_t> queue;
  for (uint32_t state = 1; state < n; ++state) {
    if (labels_[state] != 0) {
      shortest_[state] = 0;
      queue.push_back(state);
    }
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    for (const uint32_t before : from[queue[i]]) {
      if (shortest_[before] != kInfinite) continue;
      shortest_[before] = shortest_[queue[i]] + 1;
      queue.push_back(before);
    }
  }
  for (const uint32_t state : queue) shortest_max_ = std::max(shortest_max_, shortest_[state]);
  // Longest: peel states whose successors are all done; what remains lies on or before a cycle.
  std::vector<size_t> open_targets(n);
  std::vector<uint32_t> done;
  for (uint32_t state = 1; state < n; ++state) {
    open_targets[state] = to[state].size();
    if (to[state].empty()) done.push_back(state);
  }
  std::vector<uint8_t> peeled(n, 0);
  for (size_t i = 0; i < done.size(); ++i) {
    peeled[done[i]] = 1;
    for (const uint32_t before : from[done[i]]) {
      longest_[before] = std::max(longest_[before], longest_[done[i]] + 1);
      if (--open_targets[before] == 0) done.push_back(before);
    }
  }
  for (uint32_t state = 1; state < n; ++state) {
    if (peeled[state] == 0) longest_[state] = kInfinite;
  }
  // Whatever leads to a state that does not accept is not always accepting; likewise endless.
  const auto without = [&](std::vector<uint32_t> fails) {
    std::vector<uint8_t> holds(n, 1);
    for (size_t i = 0; i < fails.size(); ++i) {
      const uint32_t state = fails[i];
      if (holds[state] == 0) continue;
      holds[state] = 0;
      fails.insert(fails.end(), from[state].begin(), from[state].end());
    }
    return holds;
  };
  std::vector<uint32_t> refusing;
  std::vector<uint32_t> ending;
  for (uint32_t state = 1; state < n; ++state) {
    if (labels_[state] == 0) refusing.push_back(state);
    if (longest_[state] != kInfinite) ending.push_back(state);
  }
  always_accepting_ = without(std::move(refusing));
  endless_ = without(std::move(ending));
}

void CodePointDfa::ComputeOpen() {
  std::vector<uint8_t> plain(num_classes_, 0);
  for (size_t i = 0; i < class_starts_.size(); ++i) {
    const char32_t first = class_starts_[i].first;
    const char32_t last =
        i + 1 < class_starts_.size() ? class_starts_[i + 1].first - 1 : kCodePointMax;
    // Only the few ranges next to an exception are looked at code point by code point.
    for (char32_t cp = first; cp <= last; ++cp) {
      if (IsPlain(cp)) {
        plain[class_starts_[i].class_id] = 1;
        break;
      }
    }
  }
  open_ = StaysAlive(plain);
  full_ = StaysAlive(std::vector<uint8_t>(num_classes_, 1));
}

std::vector<uint8_t> CodePointDfa::StaysAlive(const std::vector<uint8_t>& classes) const {
  const uint32_t n = num_states();
  std::vector<std::vector<uint32_t>> from(n);
  for (uint32_t state = 1; state < n; ++state) {
    uint32_t last = n;
    for (uint32_t c = 0; c < num_classes_; ++c) {
      const uint32_t target = NextOfClass(state, c);
      if (classes[c] != 0 && target != last) from[target].push_back(state);
      if (classes[c] != 0) last = target;
    }
  }
  std::vector<uint8_t> alive(n, 0);
  for (const uint8_t level : {uint8_t{1}, uint8_t{2}}) {
    std::vector<uint8_t> fails(n, 0);
    std::vector<uint32_t> work;
    for (uint32_t state = 0; state < n; ++state) {
      fails[state] = state == kDead || (level == 2 && (alive[state] == 0 || labels_[state] == 0));
      if (fails[state] != 0) work.push_back(state);
    }
    while (!work.empty()) {
      const uint32_t state = work.back();
      work.pop_back();
      for (const uint32_t before : from[state]) {
        if (fails[before] == 0) {
          fails[before] = 1;
          work.push_back(before);
        }
      }
    }
    for (uint32_t state = 1; state < n; ++state) {
      if (fails[state] == 0) alive[state] = level;
    }
  }
  return alive;
}

// Moore's refinement: states are split until equal ones lead to equal ones.
void CodePointDfa::Minimize() {
  constexpr size_t kWorkMax = 3'000'000;
  const uint32_t n = num_states();
  std::vector<uint32_t> group(n);
  for (uint32_t state = 0; state < n; ++state) {
    group[state] = state == kDead ? 0 : labels_[state] + 1;
  }
  size_t work = 0;
  std::vector<uint32_t> row(num_classes_ + 1);
  for (size_t groups = 0;;) {
    std::unordered_map<uint64_t, uint32_t> ids;
    std::vector<uint32_t> split(n, 0);
    for (uint32_t state = 0; state < n; ++state) {
      for (uint32_t c = 0; c < num_classes_; ++c) row[c] = group[NextOfClass(state, c)];
      row[num_classes_] = group[state];
      const uint64_t key = HashBytes64(row.data(), row.size() * sizeof(row[0]));
      split[state] = ids.try_emplace(key, static_cast<uint32_t>(ids.size())).first->second;
    }
    group = std::move(split);
    if (ids.size() == groups) break;
    groups = ids.size();
    work += size_t{n} * num_classes_;
    if (work > kWorkMax) return;
  }
  std::vector<uint32_t> first(n, n);  // the state that stands for a group
  for (uint32_t state = 0; state < n; ++state) {
    if (first[group[state]] == n) first[group[state]] = state;
  }
  for (uint32_t& target : next_) target = first[group[target]];
  // States that nothing leads to any more go; the start is its own.
  std::vector<bool> reached(n, false);
  std::vector<uint32_t> todo = {kStart};
  reached[kStart] = true;
  while (!todo.empty()) {
    const uint32_t state = todo.back();
    todo.pop_back();
    for (uint32_t c = 0; c < num_classes_; ++c) {
      const uint32_t target = NextOfClass(state, c);
      if (target != kDead && !reached[target]) todo.push_back(target);
      reached[target] = true;
    }
  }
  for (uint32_t state = 1; state < n; ++state) {
    if (reached[state]) continue;
    labels_[state] = 0;
    for (uint32_t c = 0; c < num_classes_; ++c) SetNext(state, c, kDead);
  }
  Finish();
}

void CodePointDfa::ComputeHash() {
  uint64_t hash = HashBytes64(next_.data(), next_.size() * sizeof(next_[0]), num_classes_);
  hash = HashBytes64(labels_.data(), labels_.size() * sizeof(labels_[0]), hash);
  for (const ClassStart& start : class_starts_) {
    const uint32_t words[] = {start.first, start.class_id};
    hash = HashBytes64(words, sizeof(words), hash);
  }
  for (uint32_t state = 1; state < num_states(); ++state) {
    for (const Call& call : calls(state)) {
      const uint32_t words[] = {state, call.callee, call.target};
      hash = HashBytes64(words, sizeof(words), hash);
    }
  }
  hash_ = hash;
}

size_t CodePointDfa::bytes() const {
  return sizeof(*this) + next_.size() * 4 + num_states() * 13 + call_begin_.size() * 4 +
         calls_.size() * sizeof(Call) + class_starts_.size() * sizeof(ClassStart);
}

std::vector<CodePointDfa::ClassStart> PartitionCodePoints(
    std::span<const CodePointSet> sets, std::vector<std::vector<uint32_t>>* classes_of) {
  // Boundaries with the sets that begin or end there.
  std::map<char32_t, std::vector<uint32_t>> flips;
  flips[0];
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const CodePointRange& range : sets[i].ranges()) {
      flips[range.first].push_back(static_cast<uint32_t>(i));
      if (range.last < kCodePointMax) flips[range.last + 1].push_back(static_cast<uint32_t>(i));
    }
  }
  classes_of->assign(sets.size(), {});
  std::map<std::vector<uint32_t>, uint32_t> ids;
  std::vector<uint32_t> members;  // sorted
  std::vector<CodePointDfa::ClassStart> starts;
  for (const auto& [first, changed] : flips) {
    for (const uint32_t set : changed) {
      const auto at = std::lower_bound(members.begin(), members.end(), set);
      if (at != members.end() && *at == set) {
        members.erase(at);
      } else {
        members.insert(at, set);
      }
    }
    const auto [entry, is_new] = ids.try_emplace(members, static_cast<uint32_t>(ids.size()));
    if (is_new) {
      for (const uint32_t set : members) (*classes_of)[set].push_back(entry->second);
    }
    if (starts.empty() || starts.back().class_id != entry->second) {
      starts.push_back({first, entry->second});
    }
  }
  return starts;
}

}  // namespace deepinfer
