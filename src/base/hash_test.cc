#include "base/hash.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// Values of the reference tool (xxhsum -H2 and -H3) for empty input.
TEST(Hash, MatchesTheReference) {
  EXPECT_EQ(HexOf(HashBytes128("", 0)), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HashText(""), 0x2d06800538d394c2u);
}

TEST(Hash, DependsOnEveryByteAndOnTheSeed) {
  const std::string text(300, 'a');
  for (size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'b';
    EXPECT_FALSE(HashBytes128(text.data(), text.size()) ==
                 HashBytes128(other.data(), other.size()));
  }
  EXPECT_NE(HashText(text, 1), HashText(text, 2));
  EXPECT_FALSE(HashBytes128(text.data(), 300, 1) == HashBytes128(text.data(), 300, 2));
}

}  // namespace
}  // namespace deepinfer
