// `deepinfer bench latency|throughput|serve`: vLLM's benchmark names, our numbers.
#include <cstdio>
#include <cstring>

#include "apps/bench.h"
#include "apps/commands.h"

namespace deepinfer {
namespace {

struct Bench {
  const char* name;
  const char* summary;
  int (*run)(int argc, char** argv);
};

constexpr Bench kBenches[] = {
    {"latency", "one batch of equal requests: prefill and decode speed", RunBenchLatency},
    {"throughput", "many requests at once: tokens per second", RunBenchThroughput},
    {"serve", "load on a running server: time to first token, gaps, goodput", RunBenchServe},
};

int Usage(std::FILE* out, int code) {
  std::fprintf(out, "usage: deepinfer bench <what> [flags]\n");
  for (const Bench& bench : kBenches) std::fprintf(out, "  %-12s %s\n", bench.name, bench.summary);
  return code;
}

}  // namespace

int RunBench(int argc, char** argv) {
  if (argc < 2) return Usage(stderr, kExitUsage);
  for (const Bench& bench : kBenches) {
    if (std::strcmp(argv[1], bench.name) == 0) return bench.run(argc - 1, argv + 1);
  }
  const bool help = std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0;
  if (!help) std::fprintf(stderr, "bench: unknown benchmark '%s'\n", argv[1]);
  return Usage(help ? stdout : stderr, help ? kExitOk : kExitUsage);
}

}  // namespace deepinfer
