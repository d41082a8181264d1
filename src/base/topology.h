// What the process may use of the machine: processors, caches, memory, from /proc, /sys and the
// control groups it runs in. A plain value, read once at start-up by whoever composes the process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deepinfer {

struct LogicalCpu {
  int id = 0;       // number of the kernel
  int core = 0;     // dense index of its physical core; SMT siblings share it
  int package = 0;  // number of the kernel
  int node = 0;     // NUMA node
};

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // usable logical processors
  int64_t memory_total_bytes = 0;
  int64_t memory_free_bytes = 0;
};

enum class HugePageMode { kUnknown, kNever, kMadvise, kAlways };

struct Topology {
  std::string cpu_name;
  std::vector<LogicalCpu> cpus;  // those the affinity mask allows, ascending; never empty
  int num_cores = 1;             // physical cores among them
  double cpu_quota = 0;          // processors' worth of time the control group grants; 0: no limit
  std::vector<NumaNode> nodes;   // those with a usable processor; never empty
  int64_t l1d_bytes = 0;         // of one cache instance; 0: unknown
  int64_t l2_bytes = 0;
  int64_t l3_bytes = 0;
  int l3_cpus = 0;  // usable logical processors that share one L3
  HugePageMode huge_page_mode = HugePageMode::kUnknown;  // transparent huge pages
  int64_t huge_page_bytes = 0;
  int64_t huge_pages_free = 0;     // of the reserved pool
  int64_t memory_total_bytes = 0;  // the machine's or the control group's limit
  // Without pushing anything out of memory, within the limits on this process.
  int64_t memory_available_bytes = 0;
};

// Where to look. The defaults are the running machine; tests give a directory and a mask.
struct TopologySource {
  std::string root;                              // prefix of /proc and /sys
  std::optional<std::vector<int>> allowed_cpus;  // instead of the affinity mask
};

Topology ReadTopology(const TopologySource& source = {});

// Threads for compute: one per usable physical core, not more than the quota pays for.
int ComputeThreads(const Topology& topology);

}  // namespace deepinfer
