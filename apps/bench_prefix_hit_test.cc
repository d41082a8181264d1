#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "apps/bench_stats.h"
#include "base/json.h"

namespace deepinfer {
namespace {

// What the bench prints for the bundled model, cached contexts of two and of eight windows.
Json BenchOutput(const char* mode) {
  std::vector<std::string> args = {"prefix-hit",
                                   "checkpoints/tiny-v41",
                                   "--json",
                                   "--context-len=128",
                                   "--input-len=40",
                                   "--context-len-long=512",
                                   "--repeat=2",
                                   "--threads=1",
                                   "--kv-cache-memory-bytes=16MiB",
                                   "--max-model-len=1024",
                                   "--yoco-prefill-keep-tokens=80",
                                   std::string("--yoco-prefill-truncation-mode=") + mode};
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  const int code = RunBenchPrefixHit(static_cast<int>(args.size()), argv.data());
  const std::string printed = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0) << printed;
  Result<Json> json = Json::Parse(printed);
  EXPECT_TRUE(json.ok()) << printed;
  return json.ok() ? std::move(json).value() : Json::Object();
}

TEST(SyntheticPrompt, HoldsEveryIdButThatOfImages) {
  const std::vector<TokenId> ids = SyntheticPrompt(1, 0, 500, {.vocab = 5, .image_id = 3});
  EXPECT_EQ(std::set<TokenId>(ids.begin(), ids.end()), (std::set<TokenId>{0, 1, 2, 4}));
  EXPECT_EQ(SyntheticPrompt(1, 0, 500, {.vocab = 5, .image_id = 3}), ids);
  EXPECT_NE(SyntheticPrompt(1, 1, 500, {.vocab = 5, .image_id = 3}), ids);
}

// A hit computes as many tokens after a long context as after a short one, in both modes.
TEST(BenchPrefixHit, HitsComputeTheSameNumberOfTokens) {
  for (const char* mode : {"exact", "compact"}) {
    const Json out = BenchOutput(mode);
    const Json* same = out.Find("same_computed_tokens");
    ASSERT_NE(same, nullptr);
    EXPECT_EQ(same->Dump(), "true") << mode << " " << out.Dump();
    for (const char* which : {"short", "long"}) {
      const Json* part = out.Find(which);
      ASSERT_NE(part, nullptr);
      const Json* computed = part->Find("computed_tokens");
      ASSERT_NE(computed, nullptr);
      // Up to a block of the context, or up to a window of it, is computed again.
      const int replayed = std::string(mode) == "compact" ? 64 + 40 : 40;
      EXPECT_GE(std::stoi(computed->Dump()), replayed) << mode;
      EXPECT_LE(std::stoi(computed->Dump()), replayed + 16) << mode;
      const Json* scan = part->Find("index_scan_s");
      ASSERT_NE(scan, nullptr);
      EXPECT_GT(std::stod(scan->Dump()), 0.0) << mode;
    }
  }
}

}  // namespace
}  // namespace deepinfer
