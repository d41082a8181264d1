// Expressions over code points, as parsers produce them: regular expressions and the right-hand
// sides of grammar rules. Plain data, built by one thread; `height` bounds who recurses over it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "text/grammar/code_point_set.h"

namespace deepinfer {

using SyntaxId = uint32_t;

inline constexpr uint32_t kUnbounded = UINT32_MAX;

struct SyntaxNode {
  enum class Kind : uint8_t {
    kSequence,   // all parts in order; without parts: the empty text
    kAlternate,  // one of the parts; without parts: nothing matches
    kSet,        // one code point of `set`
    kRepeat,     // parts[0], min to max times
    kBegin,      // ^
    kEnd,        // $
    kCall,       // `callee`: a rule
  };
  Kind kind = Kind::kSequence;
  uint32_t min = 0;
  uint32_t max = 0;
  uint32_t callee = 0;
  int height = 1;
  CodePointSet set;
  std::vector<SyntaxId> parts;
};

class SyntaxTree {
 public:
  const SyntaxNode& node(SyntaxId id) const { return nodes_[id]; }
  size_t size() const { return nodes_.size(); }

  SyntaxId Sequence(std::vector<SyntaxId> parts) {
    if (parts.size() == 1) return parts[0];
    return AddParts(SyntaxNode::Kind::kSequence, std::move(parts));
  }
  SyntaxId Alternate(std::vector<SyntaxId> parts) {
    if (parts.size() == 1) return parts[0];
    return AddParts(SyntaxNode::Kind::kAlternate, std::move(parts));
  }
  SyntaxId Set(CodePointSet set) {
    SyntaxNode node;
    node.kind = SyntaxNode::Kind::kSet;
    node.set = std::move(set);
    return Add(std::move(node));
  }
  SyntaxId Repeat(SyntaxId part, uint32_t min, uint32_t max) {
    SyntaxNode node;
    node.kind = SyntaxNode::Kind::kRepeat;
    node.min = min;
    node.max = max;
    node.parts = {part};
    node.height = nodes_[part].height + 1;
    return Add(std::move(node));
  }
  SyntaxId Anchor(SyntaxNode::Kind kind) {
    SyntaxNode node;
    node.kind = kind;
    return Add(std::move(node));
  }
  SyntaxId Call(uint32_t callee) {
    SyntaxNode node;
    node.kind = SyntaxNode::Kind::kCall;
    node.callee = callee;
    return Add(std::move(node));
  }

 private:
  SyntaxId AddParts(SyntaxNode::Kind kind, std::vector<SyntaxId> parts) {
    SyntaxNode node;
    node.kind = kind;
    for (const SyntaxId part : parts) node.height = std::max(node.height, nodes_[part].height + 1);
    node.parts = std::move(parts);
    return Add(std::move(node));
  }
  SyntaxId Add(SyntaxNode node) {
    nodes_.push_back(std::move(node));
    return static_cast<SyntaxId>(nodes_.size() - 1);
  }

  std::vector<SyntaxNode> nodes_;
};

}  // namespace deepinfer
