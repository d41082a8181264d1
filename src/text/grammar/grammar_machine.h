// The automaton at work: a set of stacks, moved byte by byte. A stack is a frame and its parents;
// frames are immutable and shared, so a set of stacks is a list of top frames and going back is
// forgetting. One machine per matcher, on its thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar_program.h"

namespace deepinfer {

using FrameId = uint32_t;

struct GrammarFrame {
  enum class Kind : uint8_t {
    kDone,
    kRule,
    kRepeat,
    kValue,
    kString,
    kKey,
    kNumber,
    kLiteral,
    kObject,
    kArray
  };
  FrameId parent = 0;
  uint32_t plan = 0;        // index in the program's table of the kind
  uint32_t state = 0;       // of the automaton; of an object after a key: its value
  uint32_t count = 0;       // code points, items, properties, repetitions
  uint64_t value = 0;       // a code point in the making; matches of contains; digits
  uint64_t extra = 0;       // tracked keys seen: the bits, or where they are; upper half of digits
  uint64_t hash = 0;        // of this stack, exactly
  uint64_t class_hash = 0;  // the same where counts far from their limit are alike
  uint16_t aux = 0;
  uint16_t depth = 0;   // of JSON
  uint16_t height = 0;  // of the stack
  Kind kind = Kind::kDone;
  uint8_t phase = 0;
};

class GrammarMachine {
 public:
  // Counts further than this from their limit are alike to any token.
  static constexpr uint32_t kFar = 256;
  static constexpr FrameId kDone = 0;

  explicit GrammarMachine(const GrammarProgram& program);

  // The tops before the first byte.
  void Start(std::vector<FrameId>* tops);
  // Appends the tops after `byte` to `out`, whose part from `begin` on is this step's set.
  void Step(FrameId top, uint8_t byte, size_t begin, std::vector<FrameId>* out);
  // The output may end with this top.
  bool CanFinish(FrameId top);

  const GrammarFrame& frame(FrameId id) const { return frames_[id]; }
  const GrammarProgram& program() const { return program_; }

  // One code point further in the text that `frame` reads, whose automaton and count stand at
  // `state` and `count`: moves them, or returns false.
  bool AdvanceText(const GrammarFrame& frame, char32_t cp, uint32_t* state, uint32_t* count) const;
  const CodePointDfa& AutomatonOf(const GrammarFrame& frame) const;
  // `frame` with another place in its text.
  FrameId MoveText(const GrammarFrame& frame, uint32_t state, uint32_t count);
  // What may follow inside the text that `frame` reads.
  struct TextView {
    enum class Open : uint8_t {
      kNone,   // depends on the characters
      kPlain,  // every text of plain characters
      kFull,   // every text
    } open = Open::kNone;
    bool may_end = false;        // after each of those texts, and now
    uint32_t room = kUnbounded;  // characters that fit; kUnbounded also where it ends elsewhere
    // States with equal keys let the same tokens through that leave the string open, as long as
    // those have at most `common` characters. 0: no such key.
    uint64_t inside_key = 0;
    // Then the key is that of this plan, which has no limits; of its tokens those fit that are no
    // longer than `room`.
    bool use_unlimited = false;
    uint32_t unlimited = 0;
  };
  TextView ViewText(const GrammarFrame& frame, uint32_t common) const;
  static uint32_t HashKey(uint32_t hash, char32_t cp) {
    return (hash ^ static_cast<uint32_t>(cp)) * 0x9E3779B1U + 0x7F4A7C15U;
  }
  // AdvanceText for ASCII, as tables. Valid while the frame and those below it are.
  struct TextTable {
    const uint32_t* next = nullptr;
    const uint32_t* ascii = nullptr;
    const uint32_t* shortest = nullptr;
    const uint32_t* longest = nullptr;
    uint32_t num_classes = 0;
    uint32_t length_min = 0;
    uint32_t length_max = kUnbounded;
    bool hash_key = false;  // *count is the hash of a key
    bool json = true;       // quotes, backslashes and control characters are not for the table
    bool complete = true;   // false: KeyLive must be asked as well

    bool Takes(uint8_t byte) const {
      return byte < 0x80 && (!json || (byte >= 0x20 && byte != '"' && byte != '\\'));
    }
    bool Advance(uint8_t byte, uint32_t* state, uint32_t* count) const {
      const uint32_t to = next[size_t{*state} * num_classes + ascii[byte]];
      if (to == CodePointDfa::kDead) return false;
      *state = to;
      if (hash_key) {
        *count = HashKey(*count, byte);
        return true;
      }
      if (length_max != kUnbounded) {
        if (uint64_t{++*count} + shortest[to] > length_max) return false;
      } else if (*count < length_min) {
        ++*count;
      }
      return length_min == 0 || longest[to] == CodePointDfa::kInfinite ||
             uint64_t{*count} + longest[to] >= length_min;
    }
  };
  TextTable TableOf(const GrammarFrame& frame) const;
  // The rule of a number that is judged while it is written and stands where no byte of a number
  // can follow it, with its place; else null. And `frame` with another place in its number.
  const NumberRule* ViewNumber(const GrammarFrame& frame, NumberState* state) const;
  FrameId MoveNumber(const GrammarFrame& frame, const NumberState& state);
  // Appends the tops after the end of the text, whose closing quote was just read.
  void EndText(const GrammarFrame& frame, std::vector<FrameId>* out);

  struct Mark {
    size_t frames = 0;
    size_t words = 0;
  };
  Mark mark() const { return {frames_.size(), words_.size()}; }
  // Forgets every frame made since.
  void Release(const Mark& mark);
  // Keeps only what `tops` (changed to the new ids) need.
  void Compact(std::span<FrameId* const> tops);
  // Steps taken since the beginning: what bounds the time of a mask.
  int64_t steps() const { return steps_; }
  void ReachLimit(const char* why) { limit_ = why; }
  // Why paths were dropped that the grammar allows, or nullptr.
  const char* limit_reached() const { return limit_; }

 private:
  using Kind = GrammarFrame::Kind;

  FrameId Add(GrammarFrame frame);
  void Emit(const GrammarFrame& frame);  // adds and settles
  void Settle(FrameId id);               // into out_: calls entered, finished rules left
  void SettleRule(FrameId id);
  void SettleRepeat(FrameId id);
  void Enter(uint32_t callee, FrameId parent);
  void AddTop(FrameId id);
  GrammarFrame Child(Kind kind, uint32_t plan, FrameId parent) const;

  void StepOne(FrameId id, uint8_t byte);
  void StepRule(FrameId id, uint8_t byte);
  void StepString(FrameId id, uint8_t byte);
  void StepEscape(FrameId id, uint8_t byte);
  void StepHex(FrameId id, uint8_t byte);
  void StepUtf8(FrameId id, uint8_t byte);
  void StepNumber(FrameId id, uint8_t byte);
  void StepLiteral(FrameId id, uint8_t byte);
  void StepValue(FrameId id, uint8_t byte);
  void StepObject(FrameId id, uint8_t byte);
  void StepArray(FrameId id, uint8_t byte);
  void StartValue(uint32_t node, FrameId parent, uint8_t byte);
  void StartItem(FrameId array, uint8_t byte);
  void StartItemAs(FrameId array, uint32_t node, uint64_t matches, uint8_t byte);
  void StartNumber(uint32_t plan, FrameId parent, uint8_t byte);
  void EndString(FrameId id);
  void EndKey(const GrammarFrame& key);
  bool StepSpace(FrameId id, uint8_t byte);

  void TakeCodePoint(const GrammarFrame& frame, char32_t cp);
  bool AnyCodePoint(const GrammarFrame& frame, char32_t first, char32_t last) const;
  void ViewString(const GrammarFrame& frame, uint32_t common, TextView* view) const;
  static uint64_t Mix(uint64_t a, uint64_t b) {
    const auto product =
        static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15U) * (b ^ 0xD6E8FEB86659FD93U);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  uint64_t InsideKey(const CodePointDfa& automaton, uint32_t state, uint32_t room,
                     uint32_t missing) const;
  bool FreeEscapes(const GrammarFrame& frame) const;
  bool KeyLive(const GrammarFrame& object, uint32_t state) const;
  bool HashesKeys(uint32_t object_plan) const {
    return !program_.escapes_anywhere && program_.objects[object_plan].has_other;
  }
  bool UsedOther(const GrammarFrame& object, uint32_t hash) const;
  void UseOther(uint32_t hash, GrammarFrame* object);
  bool OtherKeyFits(const GrammarFrame& object) const;
  bool KeyCanStart(FrameId object) const;
  bool CanClose(const GrammarFrame& object) const;
  bool ItemCanStart(const GrammarFrame& array) const;
  std::span<const uint64_t> Seen(const GrammarFrame& object) const;
  uint64_t CopyChain(uint64_t end, std::unordered_map<uint64_t, uint64_t>* chains,
                     std::vector<uint64_t>* words) const;
  bool NumberMayEnd(FrameId id) const;
  void Hash(GrammarFrame* frame) const;
  uint64_t CountClass(const GrammarFrame& frame) const;

  const GrammarProgram& program_;
  std::vector<GrammarFrame> frames_;
  // Sets of more than 64 keys; and chains of keys that the schema does not name, which may not be
  // repeated: for each the one before (its index + 1), its hash, the hash of the chain.
  std::vector<uint64_t> words_;
  std::vector<FrameId>* out_ = nullptr;
  size_t out_begin_ = 0;
  std::vector<FrameId> work_;
  std::vector<uint64_t> settled_;
  bool settling_ = false;
  int64_t steps_ = 0;
  const char* limit_ = nullptr;
};

}  // namespace deepinfer
