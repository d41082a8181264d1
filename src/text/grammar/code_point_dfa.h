// A deterministic automaton over code points. Its states may also call other rules of a grammar,
// which is how a context-free rule is one. State 0 is dead, 1 the start; every other state can
// still reach an accepting one. Immutable once finished; safe on any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/status.h"
#include "text/grammar/code_point_set.h"

namespace deepinfer {

class CodePointDfa {
 public:
  static constexpr uint32_t kDead = 0;
  static constexpr uint32_t kStart = 1;
  static constexpr uint32_t kInfinite = UINT32_MAX;

  struct Call {
    uint32_t callee = 0;
    uint32_t target = 0;  // the state after the callee is done
  };

  static CodePointDfa Anything();
  // Accepts exactly `texts` (valid UTF-8), with label index + 1 (of equal texts the first).
  // kInvalid where its table would be larger than kTableMax.
  static Result<CodePointDfa> OfTexts(std::span<const std::string> texts);
  // Entries of a transition table: states times classes, 64 MB.
  static constexpr size_t kTableMax = 16'000'000;

  uint32_t num_states() const { return static_cast<uint32_t>(labels_.size()); }
  uint32_t Next(uint32_t state, char32_t cp) const {
    return next_[size_t{state} * num_classes_ + ClassOf(cp)];
  }
  // Some code point of [first, last], surrogates apart, leads on.
  bool LeadsOn(uint32_t state, char32_t first, char32_t last) const;
  // Some code point leads on at all.
  bool leads_on(uint32_t state) const { return leads_on_[state] != 0; }
  // 0: not accepting; else what the builder gave (1 where it matters not).
  uint32_t label(uint32_t state) const { return labels_[state]; }
  std::span<const Call> calls(uint32_t state) const {
    return calls_.empty() ? std::span<const Call>()
                          : std::span(calls_).subspan(call_begin_[state],
                                                      call_begin_[state + 1] - call_begin_[state]);
  }
  bool has_calls() const { return !calls_.empty(); }
  // Code points to the nearest and the farthest accepting state. Not with calls.
  uint32_t shortest(uint32_t state) const { return shortest_[state]; }
  uint32_t longest(uint32_t state) const { return longest_[state]; }
  uint32_t shortest_max() const { return shortest_max_; }
  // Every text that leads on from here leads to accepting states only.
  bool always_accepting(uint32_t state) const { return always_accepting_[state] != 0; }
  // Every text that leads on from here can be continued to texts of any length.
  bool endless(uint32_t state) const { return endless_[state] != 0; }
  // Every text of plain code points leads on, forever: see IsPlain.
  bool open(uint32_t state) const { return open_[state] != 0; }
  // The same through accepting states only.
  bool open_accepting(uint32_t state) const { return open_[state] == 2; }
  // The same for texts of any code points.
  bool full(uint32_t state) const { return full_[state] != 0; }
  bool full_accepting(uint32_t state) const { return full_[state] == 2; }

  // What stands for itself in a JSON string and in any class that only excludes line ends.
  static bool IsPlain(char32_t cp) {
    return cp >= 0x20 && cp != '"' && cp != '\\' && cp != 0x2028 && cp != 0x2029 && cp != 0x7F;
  }

  // The alphabet: classes of code points that no state tells apart.
  uint32_t num_classes() const { return num_classes_; }
  uint32_t ClassOf(char32_t cp) const { return cp < 128 ? ascii_[cp] : ClassBeyondAscii(cp); }
  struct ClassStart {
    char32_t first = 0;
    uint32_t class_id = 0;
  };
  const std::vector<ClassStart>& class_starts() const { return class_starts_; }

  // Building: an alphabet, then states with transitions, then Finish.
  explicit CodePointDfa(std::vector<ClassStart> class_starts);
  uint32_t AddState();  // the first is the dead one
  void SetNext(uint32_t state, uint32_t class_id, uint32_t target) {
    next_[size_t{state} * num_classes_ + class_id] = target;
  }
  uint32_t NextOfClass(uint32_t state, uint32_t class_id) const {
    return next_[size_t{state} * num_classes_ + class_id];
  }
  void SetLabel(uint32_t state, uint32_t label) { labels_[state] = label; }
  void SetCalls(std::vector<std::vector<Call>> calls);
  // Takes away what cannot reach acceptance and computes lengths and openness. False when nothing
  // is accepted: then only the dead state and a dead start remain.
  bool Finish();

  // After Finish, without calls: merges states that no text tells apart. Gives up, and changes
  // nothing, on large automata.
  void Minimize();
  // The tables themselves, for loops that cannot afford a call: target of (state, class of an
  // ASCII character) at table[state * num_classes() + ascii[c]].
  const uint32_t* table() const { return next_.data(); }
  const uint32_t* ascii() const { return ascii_.data(); }
  const uint32_t* shortest_table() const { return shortest_.data(); }
  const uint32_t* longest_table() const { return longest_.data(); }

  size_t bytes() const;
  // Of everything that decides its behaviour: equal automata of different grammars agree.
  uint64_t hash() const { return hash_; }

 private:
  uint32_t ClassBeyondAscii(char32_t cp) const;
  bool RemoveDead();  // false: the start is dead
  void ComputeLengths();
  void ComputeOpen();
  // 1 for states that lead on under all `classes` for ever, 2 where only accepting ones are met.
  std::vector<uint8_t> StaysAlive(const std::vector<uint8_t>& classes) const;
  void ComputeHash();

  uint32_t num_classes_ = 1;
  std::vector<ClassStart> class_starts_;
  std::array<uint32_t, 128> ascii_{};
  std::vector<uint32_t> next_;
  std::vector<uint32_t> labels_;
  std::vector<uint32_t> call_begin_;
  std::vector<Call> calls_;
  std::vector<uint32_t> shortest_;
  std::vector<uint32_t> longest_;
  std::vector<uint8_t> open_;
  std::vector<uint8_t> full_;
  std::vector<uint8_t> leads_on_;
  std::vector<uint8_t> always_accepting_;
  std::vector<uint8_t> endless_;
  uint32_t shortest_max_ = 0;
  uint64_t hash_ = 0;
};

// The partition of all code points by which of `sets` hold them; `classes_of` gets for each set
// the ids of its classes.
std::vector<CodePointDfa::ClassStart> PartitionCodePoints(
    std::span<const CodePointSet> sets, std::vector<std::vector<uint32_t>>* classes_of);

}  // namespace deepinfer
