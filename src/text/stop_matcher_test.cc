#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include "text/unicode.h"

namespace deepinfer {
namespace {

using StopText = StopMatcher::StopText;

struct Outcome {
  std::string text;
  std::string match;
  bool operator==(const Outcome&) const = default;
};

Outcome Stream(const std::vector<std::string>& stops, StopText mode,
               const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops, mode);
  Outcome outcome;
  for (const std::string& piece : pieces) matcher.Push(piece, &outcome.text);
  matcher.Finish(&outcome.text);
  outcome.match = matcher.match();
  return outcome;
}

TEST(StopMatcher, CutsAtTheMatchAcrossPieces) {
  EXPECT_EQ(Stream({"END"}, StopText::kExclude, {"abc E", "N", "D tail"}),
            (Outcome{"abc ", "END"}));
  EXPECT_EQ(Stream({"END"}, StopText::kInclude, {"abc E", "N", "D tail"}),
            (Outcome{"abc END", "END"}));
  EXPECT_EQ(Stream({"END"}, StopText::kExclude, {"abc E", "N"}), (Outcome{"abc EN", ""}));
  EXPECT_EQ(Stream({}, StopText::kExclude, {"abc"}), (Outcome{"abc", ""}));
  EXPECT_EQ(Stream({""}, StopText::kExclude, {"abc"}), (Outcome{"abc", ""}));
}

TEST(StopMatcher, TakesTheEarliestEndAndThenTheLongest) {
  EXPECT_EQ(Stream({"abcd", "bc"}, StopText::kExclude, {"xabcd"}), (Outcome{"xa", "bc"}));
  EXPECT_EQ(Stream({"c", "abc"}, StopText::kExclude, {"xabcd"}), (Outcome{"x", "abc"}));
  EXPECT_EQ(Stream({"aab"}, StopText::kExclude, {"aa", "aab"}), (Outcome{"aa", "aab"}));
}

TEST(StopMatcher, HoldsNoMoreThanItMust) {
  StopMatcher matcher({"\n\n", "<end>"}, StopText::kExclude);
  std::string out;
  matcher.Push("hello <", &out);
  EXPECT_EQ(out, "hello ");
  matcher.Push("b", &out);
  EXPECT_EQ(out, "hello <b");
  matcher.Push("\n", &out);
  EXPECT_EQ(out, "hello <b");
  matcher.Push("x", &out);
  EXPECT_EQ(out, "hello <b\nx");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, LetsTextPassBeforeMinTokens) {
  StopMatcher matcher({"ab"}, StopText::kExclude);
  std::string out;
  matcher.PushUnmatched("xab a", &out);
  EXPECT_EQ(out, "xab a");
  matcher.Push("b", &out);
  EXPECT_FALSE(matcher.matched());
  matcher.Push("ab", &out);
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(out, "xab ab");
  matcher.Push("more", &out);
  matcher.Finish(&out);
  EXPECT_EQ(out, "xab ab");
}

// The plain definition: of all occurrences the one that ends first, then the longest.
Outcome Reference(const std::vector<std::string>& stops, StopText mode, const std::string& text) {
  size_t best_end = text.size() + 1;
  std::string best;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (stop.empty() || at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < best_end || (end == best_end && stop.size() > best.size())) {
      best_end = end;
      best = stop;
    }
  }
  if (best.empty()) return {text, ""};
  return {text.substr(0, mode == StopText::kInclude ? best_end : best_end - best.size()), best};
}

TEST(StopMatcher, AgreesWithThePlainDefinitionAndReleasesWholeCharacters) {
  const std::vector<std::string> alphabet = {"a", "b", "\xC3\xA9", "\xC3\xA8", "\xE4\xB8\xAD"};
  uint64_t state = 1;
  const auto below = [&state](uint64_t n) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % n;
  };
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](uint64_t most) {
      std::string text;
      for (uint64_t left = below(most + 1); left > 0; --left) text += alphabet[below(5)];
      return text;
    };
    std::vector<std::string> stops;
    size_t longest = 0;
    for (uint64_t left = below(4); left > 0; --left) {
      stops.push_back(word(4));
      longest = std::max(longest, stops.back().size());
    }
    const StopText mode = below(2) == 0 ? StopText::kExclude : StopText::kInclude;
    StopMatcher matcher(stops, mode);
    Outcome outcome;
    std::string text;
    while (text.size() < 60) {
      const std::string piece = word(3);
      text += piece;
      matcher.Push(piece, &outcome.text);
      EXPECT_EQ(ValidUtf8Prefix(outcome.text), outcome.text.size());
      if (!matcher.matched()) {
        EXPECT_LT(text.size() - outcome.text.size(), std::max<size_t>(longest, 1));
      }
    }
    matcher.Finish(&outcome.text);
    outcome.match = matcher.match();
    EXPECT_EQ(outcome, Reference(stops, mode, text)) << text;
  }
}

}  // namespace
}  // namespace deepinfer
