// Fills masks: walks the vocabulary's trie along with the machine. One per matcher, its thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/grammar/grammar_machine.h"
#include "text/grammar/mask_cache.h"
#include "text/grammar/token_trie.h"

namespace deepinfer {

class MaskWalker {
 public:
  static const char* const kOutOfSteps;

  MaskWalker(GrammarMachine* machine, const TokenTrie* trie, MaskCache* cache)
      : machine_(machine), trie_(trie), cache_(cache) {}

  // Masks made from here on may take `steps` of the machine together.
  void GrantSteps(int64_t steps) { steps_max_ = machine_->steps() + steps; }
  // Adds to `mask` (trie's mask_words()) the tokens that may follow `top` alone. Returns the trie
  // nodes looked at: what it cost. Out of steps it ends early, which
  // the machine's limit_reached() tells.
  size_t AddMask(FrameId top, std::span<uint64_t> mask);

 private:
  // The set of stacks after the bytes on the way to a node. Where that is one stack inside a text,
  // or a number, the levels below are light while that goes on: only the place in it moves.
  struct Level {
    bool light = false;
    const NumberRule* rule = nullptr;  // of a light level in a number
    NumberState number;
    uint32_t anchor = 0;  // of a light level: the depth that holds the rest
    uint32_t state = 0;
    uint32_t count = 0;
    size_t begin = 0;  // in tops_
    size_t end = 0;
    GrammarMachine::Mark mark;  // of the machine after these stacks were made
    FrameId base = 0;           // the stack inside the text
    GrammarMachine::TextTable table;
  };

  size_t AddText(const GrammarFrame& text, std::span<uint64_t> mask);
  size_t AddInside(const GrammarMachine::TextView& view, const GrammarFrame& text,
                   std::span<uint64_t> mask);
  size_t MakeInside(const GrammarMachine::TextView& view, const GrammarFrame& text,
                    std::span<uint64_t> mask);
  size_t Walk(const TokenTrie::Tree& tree, std::span<uint64_t> mask);
  bool Advance(uint32_t depth, uint8_t byte);
  void SetStart(size_t begin, size_t end);
  void MakeLight(uint32_t depth);

  GrammarMachine* machine_;
  const TokenTrie* trie_;
  MaskCache* cache_;
  std::vector<Level> levels_;
  std::vector<FrameId> tops_;
  int64_t steps_max_ = 0;
};

}  // namespace deepinfer
