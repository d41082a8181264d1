// Finds stop strings in the text of one sample as it streams, across any cut into pieces.
// The match that ends first wins, and of those that end together the longest. Text is released as
// soon as it cannot be part of a match. Owned by a Sequence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

class StopMatcher {
 public:
  // Whether the stop string itself belongs to the text.
  enum class StopText { kExclude, kInclude };

  // Empty strings are ignored.
  StopMatcher(std::vector<std::string> stops, StopText stop_text);

  // Takes complete characters of UTF-8 and appends to `out` what is safe to release. After a match
  // nothing more is taken.
  void Push(std::string_view text, std::string* out);
  // Takes text in which no stop string may begin or end (before min_tokens).
  void PushUnmatched(std::string_view text, std::string* out);
  // The sample is over: appends what was held back. Nothing after a match.
  void Finish(std::string* out);

  bool matched() const { return match_ >= 0; }
  // The stop string that matched; empty when none did.
  const std::string& match() const;

 private:
  // A node is a prefix of some stop string.
  struct Node {
    uint32_t first_child = 0;  // children stand together, ordered by byte
    uint16_t children = 0;
    uint8_t byte = 0;
    int32_t stop = -1;      // the longest stop string that ends here
    uint32_t fallback = 0;  // the longest proper suffix that is a node
    uint32_t length = 0;
  };
  void Build();
  void Link();
  int64_t ChildOf(uint32_t node, uint8_t byte) const;  // -1: none
  uint32_t Next(uint32_t node, uint8_t byte) const;

  std::vector<std::string> stops_;
  StopText stop_text_;
  std::vector<Node> nodes_;
  std::string held_;  // ends with the prefix that `state_` stands for
  uint32_t state_ = 0;
  int match_ = -1;
};

}  // namespace deepinfer
