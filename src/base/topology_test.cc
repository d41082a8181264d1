#include "base/topology.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/format.h"

namespace deepinfer {
namespace {

class TopologyTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "topology_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    FILE* file = std::fopen(full.c_str(), "w");
    ASSERT_NE(file, nullptr);
    std::fputs((text + "\n").c_str(), file);
    std::fclose(file);
  }

  // Two packages of two cores with two threads each: cpu c and c + 4 are siblings.
  void WriteMachine() {
    for (int cpu = 0; cpu < 8; ++cpu) {
      const std::string dir = Format("/sys/devices/system/cpu/cpu{}/", cpu);
      Write(dir + "topology/physical_package_id", Format("{}", cpu / 2 % 2));
      Write(dir + "topology/core_id", Format("{}", cpu % 2));
      const std::string sharing = cpu / 2 % 2 == 0 ? "0-1,4-5" : "2-3,6-7";
      const std::pair<const char*, const char*> caches[] = {
          {"Data", "48K"}, {"Instruction", "32K"}, {"Unified", "2048K"}, {"Unified", "96M"}};
      for (int index = 0; index < 4; ++index) {
        const std::string cache = Format("{}cache/index{}/", dir, index);
        Write(cache + "level", index < 2 ? "1" : Format("{}", index));
        Write(cache + "type", caches[index].first);
        Write(cache + "size", caches[index].second);
        Write(cache + "shared_cpu_list", sharing);
      }
    }
    Write("/sys/devices/system/node/online", "0-1");
    Write("/sys/devices/system/node/node0/cpulist", "0-1,4-5");
    Write("/sys/devices/system/node/node1/cpulist", "2-3,6-7");
    Write("/sys/devices/system/node/node1/meminfo",
          "Node 1 MemTotal:       2048 kB\nNode 1 MemFree:        1024 kB");
    Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    Write("/proc/meminfo",
          "MemTotal:       8388608 kB\nMemFree: 10 kB\nMemAvailable:   4194304 kB\n"
          "HugePages_Free:        3\nHugepagesize:       2048 kB");
    Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags : fpu");
  }

  Topology Read(std::vector<int> allowed) { return ReadTopology({root_, std::move(allowed)}); }

  std::string root_;
};

TEST_F(TopologyTest, CountsCoresNodesAndCaches) {
  WriteMachine();
  const Topology topology = Read({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(topology.cpu_name, "Some CPU @ 2 GHz");
  EXPECT_EQ(topology.num_cores, 4);
  ASSERT_EQ(topology.cpus.size(), 8u);
  EXPECT_EQ(topology.cpus[1].core, topology.cpus[5].core);
  EXPECT_NE(topology.cpus[0].core, topology.cpus[2].core);
  EXPECT_EQ(topology.cpus[6].node, 1);
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_EQ(topology.nodes[1].cpus, (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(topology.nodes[1].memory_total_bytes, 2048 * 1024);
  EXPECT_EQ(topology.l1d_bytes, 48 << 10);
  EXPECT_EQ(topology.l2_bytes, 2048 << 10);
  EXPECT_EQ(topology.l3_bytes, 96 << 20);
  EXPECT_EQ(topology.l3_cpus, 4);
  EXPECT_EQ(topology.huge_page_mode, HugePageMode::kMadvise);
  EXPECT_EQ(topology.huge_page_bytes, 2 << 20);
  EXPECT_EQ(topology.huge_pages_free, 3);
  EXPECT_EQ(topology.memory_total_bytes, int64_t{8} << 30);
  EXPECT_EQ(topology.memory_available_bytes, int64_t{4} << 30);
  EXPECT_EQ(ComputeThreads(topology), 4);
}

TEST_F(TopologyTest, AffinityNarrowsEverything) {
  WriteMachine();
  const Topology topology = Read({6, 2});
  EXPECT_EQ(topology.num_cores, 1);
  ASSERT_EQ(topology.nodes.size(), 1u);
  EXPECT_EQ(topology.nodes[0].id, 1);
  EXPECT_EQ(topology.l3_cpus, 2);
  EXPECT_EQ(ComputeThreads(topology), 1);
}

TEST_F(TopologyTest, Version2GroupsLimitAtEveryLevel) {
  WriteMachine();
  Write("/proc/self/cgroup", "0::/outer/inner");
  Write("/sys/fs/cgroup/outer/cpu.max", "250000 100000");
  Write("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000");
  Write("/sys/fs/cgroup/outer/memory.max", "1073741824");
  Write("/sys/fs/cgroup/outer/memory.current", "805306368");
  Write("/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 268435456");
  Write("/sys/fs/cgroup/outer/inner/memory.max", "max");
  const Topology topology = Read({0, 1, 2, 3});
  EXPECT_EQ(topology.cpu_quota, 2.5);
  EXPECT_EQ(topology.memory_total_bytes, int64_t{1} << 30);
  EXPECT_EQ(topology.memory_available_bytes, int64_t{1} << 29);
  EXPECT_EQ(ComputeThreads(topology), 2);
}

TEST_F(TopologyTest, Version1GroupsLimitToo) {
  WriteMachine();
  Write("/proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/\n0::/");
  Write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000");
  Write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741824");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  const Topology topology = Read({0, 1, 2, 3});
  EXPECT_EQ(topology.cpu_quota, 0.5);
  EXPECT_EQ(topology.memory_total_bytes, int64_t{2} << 30);
  EXPECT_EQ(topology.memory_available_bytes, int64_t{1} << 30);
  EXPECT_EQ(ComputeThreads(topology), 1);
}

TEST_F(TopologyTest, NothingToReadGivesAUsableDefault) {
  const Topology topology = Read({});
  EXPECT_EQ(topology.cpus.size(), 1u);
  EXPECT_EQ(topology.nodes.size(), 1u);
  EXPECT_EQ(topology.memory_total_bytes, 0);
  EXPECT_EQ(ComputeThreads(topology), 1);
}

TEST_F(TopologyTest, NonsenseFilesAreIgnored) {
  Write("/proc/self/cgroup", "x\n0::\n:::::\n0::relative");
  Write("/proc/meminfo", "MemTotal: abc\nMemAvailable:");
  Write("/proc/cpuinfo", "model name");
  Write("/sys/fs/cgroup/cpu.max", "-5 0");
  Write("/sys/devices/system/node/online", "3-1,a,5-,99999999999");
  const Topology topology = Read({1});
  EXPECT_EQ(topology.cpus[0].id, 1);
  EXPECT_EQ(topology.cpu_quota, 0);
  EXPECT_EQ(topology.nodes.size(), 1u);
}

TEST(Topology, ThisMachineIsPlausible) {
  const Topology topology = ReadTopology();
  EXPECT_GE(topology.cpus.size(), static_cast<size_t>(topology.num_cores));
  EXPECT_GT(topology.memory_available_bytes, 0);
  EXPECT_LE(topology.memory_available_bytes, topology.memory_total_bytes);
  EXPECT_GE(ComputeThreads(topology), 1);
}

}  // namespace
}  // namespace deepinfer
