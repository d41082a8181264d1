// `deepinfer bench latency|throughput|serve|speculation|prefix-hit`: vLLM's names where it has the
// benchmark, our numbers.
#include "apps/bench.h"

#include "apps/commands.h"

namespace deepinfer {
namespace {

constexpr Command kBenches[] = {
    {"latency", "one batch of equal requests: prefill and decode speed", RunBenchLatency},
    {"start", "process start to first token, and the memory it took", RunBenchStart},
    {"throughput", "many requests at once: tokens per second", RunBenchThroughput},
    {"serve", "load on a running server: time to first token, gaps, goodput", RunBenchServe},
    {"speculation", "one stream with drafts and without: emitted tokens per verification, speed-up",
     RunBenchSpeculation},
    {"prefix-hit", "first token after a cached context, at two lengths", RunBenchPrefixHit},
};

}  // namespace

int RunBench(int argc, char** argv) { return Dispatch("deepinfer bench", kBenches, argc, argv); }

}  // namespace deepinfer
