// Fills masks: walks the vocabulary's trie along with the machine. One per matcher, its thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/grammar/grammar_machine.h"
#include "text/grammar/token_trie.h"

namespace deepinfer {

class MaskWalker {
 public:
  MaskWalker(GrammarMachine* machine, const TokenTrie* trie) : machine_(machine), trie_(trie) {}

  // Adds to `mask` (trie's mask_words()) the tokens that may follow `top` alone. Returns the trie
  // nodes looked at: what it cost.
  size_t AddMask(FrameId top, std::span<uint64_t> mask);

 private:
  // The set of stacks after the bytes on the way to a node; or, while only one text is read and
  // its escapes and end are not touched, the place in that text.
  struct Level {
    size_t begin = 0;  // in tops_
    size_t end = 0;
    GrammarMachine::Mark mark;  // of the machine after these stacks were made
    bool light = false;
    uint32_t state = 0;
    uint32_t count = 0;
  };

  size_t Walk(const TokenTrie::Tree& tree, std::span<uint64_t> mask);
  bool Advance(const Level& from, uint8_t byte, Level* to);
  bool StaysLight(uint8_t byte) const;

  GrammarMachine* machine_;
  const TokenTrie* trie_;
  std::vector<Level> levels_;
  std::vector<FrameId> tops_;
  GrammarFrame text_;  // of light levels
};

}  // namespace deepinfer
