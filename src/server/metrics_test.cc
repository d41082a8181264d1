#include "server/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/format.h"

namespace deepinfer {
namespace {

MetricsSnapshot Example(const ServerCounters* counters) {
  MetricsSnapshot snapshot;
  snapshot.model_name = "a \"quoted\" \\ name";
  snapshot.loaded = true;
  snapshot.engine.running = 3;
  snapshot.engine.requests_stopped = 5;
  snapshot.engine.kv_usage = 0.25;
  snapshot.engine.histograms.push_back(
      {"time_to_first_token_seconds", "Help.", {0.001, 1}, {1, 2, 3}, 4.5, 6});
  snapshot.engine.histograms.push_back(
      {"inter_token_latency_seconds", "Help.", {0.01}, {1, 0}, 0.001, 1});
  snapshot.engine.weights = {.packed_bytes = 900,
                             .touched_bytes = 950,
                             .cache_limit_bytes = 500,
                             .cache_bytes = 400,
                             .cache_lookups = 30,
                             .cache_hits = 20,
                             .cache_streams = 7,
                             .cache_loads = 10,
                             .cache_evictions = 4,
                             .cache_load_us = 1'500'000,
                             .engram_tables = 2,
                             .engram_rows = 8,
                             .engram_hits = 6,
                             .engram_reads = 2,
                             .engram_read_bytes = 528,
                             .engram_errors = 1,
                             .engram_stall_us = 250'000};
  snapshot.limits.block_size = 16;
  snapshot.counters = counters;
  return snapshot;
}

TEST(MetricsTest, RendersEngineNumbersUnderTheirNames) {
  ServerCounters counters;
  counters.AddResponse(200);
  counters.AddResponse(200);
  counters.AddResponse(499);
  counters.AddResponse(7);  // no status: ignored
  const std::string text = RenderMetrics(Example(&counters));
  const std::string labels = R"(model_name="a \"quoted\" \\ name",engine="0")";
  for (const std::string& line :
       {"vllm:num_requests_running{" + labels + "} 3\n",
        "vllm:kv_cache_usage_perc{" + labels + "} 0.25\n",
        "vllm:request_success_total{" + labels + ",finished_reason=\"stop\"} 5\n",
        "vllm:time_to_first_token_seconds_bucket{" + labels + ",le=\"0.001\"} 1\n",
        "vllm:time_to_first_token_seconds_bucket{" + labels + ",le=\"1.0\"} 3\n",
        "vllm:time_to_first_token_seconds_bucket{" + labels + ",le=\"+Inf\"} 6\n",
        "vllm:time_to_first_token_seconds_sum{" + labels + "} 4.5\n",
        "vllm:time_to_first_token_seconds_count{" + labels + "} 6\n",
        "vllm:time_per_output_token_seconds_count{" + labels + "} 1\n",
        "deepinfer:weights_packed_bytes{" + labels + "} 900\n",
        "deepinfer:weights_touched_bytes{" + labels + "} 950\n",
        "deepinfer:weight_cache_streams_total{" + labels + "} 7\n",
        "deepinfer:weight_cache_limit_bytes{" + labels + "} 500\n",
        "deepinfer:weight_cache_bytes{" + labels + "} 400\n",
        "deepinfer:weight_cache_lookups_total{" + labels + "} 30\n",
        "deepinfer:weight_cache_hits_total{" + labels + "} 20\n",
        "deepinfer:weight_cache_evictions_total{" + labels + "} 4\n",
        "deepinfer:weight_cache_load_seconds_total{" + labels + "} 1.5\n",
        "deepinfer:engram_rows_total{" + labels + "} 8\n",
        "deepinfer:engram_hit_rate{" + labels + "} 0.75\n",
        "deepinfer:engram_read_errors_total{" + labels + "} 1\n",
        "deepinfer:engram_stall_seconds_total{" + labels + "} 0.25\n",
        "deepinfer:http_responses_total{" + labels + ",code=\"200\"} 2\n",
        "deepinfer:http_responses_total{" + labels + ",code=\"499\"} 1\n",
        "deepinfer:ready{" + labels + "} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

// The rules of the exposition format that scrapers rely on.
TEST(MetricsTest, TextIsWellFormed) {
  ServerCounters counters;
  const std::string text = RenderMetrics(Example(&counters));
  ASSERT_TRUE(text.ends_with('\n'));
  std::map<std::string, std::string> types;
  std::set<std::string> samples;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("# TYPE ")) {
      const size_t space = line.find(' ', 7);
      EXPECT_TRUE(types.emplace(line.substr(7, space - 7), line.substr(space + 1)).second) << line;
      continue;
    }
    if (line.starts_with("# HELP ")) continue;
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    EXPECT_TRUE(samples.insert(line.substr(0, space)).second) << "twice: " << line;
    std::string family = line.substr(0, line.find('{'));
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const std::string base = family.substr(0, family.size() - std::strlen(suffix));
      if (family.ends_with(suffix) && types.count(base) > 0) family = base;
    }
    ASSERT_EQ(types.count(family), 1) << line;
    EXPECT_EQ(types[family] == "counter",
              family.ends_with("_total") && types[family] != "histogram")
        << line;
  }
}

TEST(MetricsTest, WhatTheModelLacksIsLeftOut) {
  ServerCounters counters;
  MetricsSnapshot snapshot = Example(&counters);
  snapshot.engine.weights = {.packed_bytes = 900};
  const std::string text = RenderMetrics(snapshot);
  EXPECT_NE(text.find("deepinfer:weights_packed_bytes"), std::string::npos);
  EXPECT_EQ(text.find("weight_cache"), std::string::npos);
  EXPECT_EQ(text.find("engram"), std::string::npos);
}

TEST(MetricsTest, WithoutAModelOnlyTheServerSpeaks) {
  ServerCounters counters;
  MetricsSnapshot snapshot;
  snapshot.counters = &counters;
  const std::string text = RenderMetrics(snapshot);
  EXPECT_EQ(text.find("vllm:"), std::string::npos);
  EXPECT_NE(text.find("deepinfer:ready{model_name=\"\",engine=\"0\"} 0\n"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
