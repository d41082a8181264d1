#include "base/topology.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

#include "base/format.h"

namespace deepinfer {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr int kCpuIdMax = 1 << 16;
// Control groups of version 1 say "no limit" with a number near 2^63.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 60;

std::string ReadFile(const std::string& path) {
  std::string text;
  FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return text;
  char buffer[4096];
  size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, file)) > 0 && text.size() < kFileBytesMax) {
    text.append(buffer, count);
  }
  std::fclose(file);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<int64_t> ParseNumber(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<int64_t> ReadNumber(const std::string& path) { return ParseNumber(ReadFile(path)); }

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

// "0-3,8,10-11"; entries that are no such ranges are skipped.
std::vector<int> ParseCpuList(std::string_view text) {
  std::vector<int> cpus;
  for (std::string_view range : Split(text, ',')) {
    const size_t dash = range.find('-');
    const std::optional<int64_t> first = ParseNumber(range.substr(0, dash));
    const std::optional<int64_t> last =
        dash == range.npos ? first : ParseNumber(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last > kCpuIdMax) continue;
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

// "48K", "2M" as /sys/.../cache/*/size writes them.
int64_t ParseCacheSize(std::string_view text) {
  const int64_t value = ParseNumber(text).value_or(0);
  if (text.ends_with('K')) return value << 10;
  if (text.ends_with('M')) return value << 20;
  return value;
}

// The number after "NAME:" in a file of such lines, in bytes when it is followed by kB.
std::optional<int64_t> FieldOf(std::string_view text, std::string_view name) {
  for (std::string_view line : Split(text, '\n')) {
    const size_t at = line.find(name);
    if (at == line.npos) continue;
    const std::optional<int64_t> value = ParseNumber(line.substr(at + name.size()));
    if (!value) continue;
    return line.ends_with("kB") ? *value << 10 : *value;
  }
  return std::nullopt;
}

std::vector<int> AffinityCpus() {
  std::vector<int> cpus;
  cpu_set_t* mask = CPU_ALLOC(kCpuIdMax);
  const size_t bytes = CPU_ALLOC_SIZE(kCpuIdMax);
  CPU_ZERO_S(bytes, mask);
  if (sched_getaffinity(0, bytes, mask) == 0) {
    for (int cpu = 0; cpu < kCpuIdMax; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(mask);
  return cpus;
}

void ReadCpus(const std::string& root, std::vector<int> allowed, Topology* topology) {
  std::sort(allowed.begin(), allowed.end());
  if (allowed.empty()) allowed = {0};
  std::map<std::pair<int64_t, int64_t>, int> cores;  // (package, core number) -> dense index
  for (const int id : allowed) {
    const std::string dir = Format("{}/sys/devices/system/cpu/cpu{}/topology/", root, id);
    LogicalCpu cpu;
    cpu.id = id;
    cpu.package = static_cast<int>(ReadNumber(dir + "physical_package_id").value_or(0));
    // Without the file every processor counts as a core.
    const int64_t core_number = ReadNumber(dir + "core_id").value_or(-1 - id);
    cpu.core =
        cores.try_emplace({cpu.package, core_number}, static_cast<int>(cores.size())).first->second;
    topology->cpus.push_back(cpu);
  }
  topology->num_cores = static_cast<int>(cores.size());
}

void ReadNodes(const std::string& root, Topology* topology) {
  const std::string base = root + "/sys/devices/system/node/";
  for (const int id : ParseCpuList(ReadFile(base + "online"))) {
    const std::string dir = Format("{}node{}/", base, id);
    NumaNode node;
    node.id = id;
    for (const int cpu : ParseCpuList(ReadFile(dir + "cpulist"))) {
      for (LogicalCpu& usable : topology->cpus) {
        if (usable.id != cpu) continue;
        usable.node = id;
        node.cpus.push_back(cpu);
      }
    }
    if (node.cpus.empty()) continue;
    const std::string memory = ReadFile(dir + "meminfo");
    node.memory_total_bytes = FieldOf(memory, "MemTotal:").value_or(0);
    node.memory_free_bytes = FieldOf(memory, "MemFree:").value_or(0);
    topology->nodes.push_back(std::move(node));
  }
  if (!topology->nodes.empty()) return;
  NumaNode node;
  for (const LogicalCpu& cpu : topology->cpus) node.cpus.push_back(cpu.id);
  node.memory_total_bytes = topology->memory_total_bytes;
  node.memory_free_bytes = topology->memory_available_bytes;
  topology->nodes.push_back(std::move(node));
}

void ReadCaches(const std::string& root, Topology* topology) {
  const std::string base =
      Format("{}/sys/devices/system/cpu/cpu{}/cache/", root, topology->cpus.front().id);
  for (int index = 0; index < 8; ++index) {
    const std::string dir = Format("{}index{}/", base, index);
    const int64_t level = ReadNumber(dir + "level").value_or(0);
    const int64_t bytes = ParseCacheSize(ReadFile(dir + "size"));
    if (level == 1 && ReadFile(dir + "type") == "Data") topology->l1d_bytes = bytes;
    if (level == 2) topology->l2_bytes = bytes;
    if (level != 3) continue;
    topology->l3_bytes = bytes;
    const std::vector<int> sharing = ParseCpuList(ReadFile(dir + "shared_cpu_list"));
    topology->l3_cpus = static_cast<int>(
        std::count_if(topology->cpus.begin(), topology->cpus.end(), [&](const LogicalCpu& cpu) {
          return std::find(sharing.begin(), sharing.end(), cpu.id) != sharing.end();
        }));
  }
}

void ReadMemory(const std::string& root, Topology* topology) {
  const std::string memory = ReadFile(root + "/proc/meminfo");
  topology->memory_total_bytes = FieldOf(memory, "MemTotal:").value_or(0);
  topology->memory_available_bytes = FieldOf(memory, "MemAvailable:").value_or(0);
  topology->huge_page_bytes = FieldOf(memory, "Hugepagesize:").value_or(0);
  topology->huge_pages_free = FieldOf(memory, "HugePages_Free:").value_or(0);
  const std::string mode = ReadFile(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  if (mode.find("[never]") != mode.npos) topology->huge_page_mode = HugePageMode::kNever;
  if (mode.find("[madvise]") != mode.npos) topology->huge_page_mode = HugePageMode::kMadvise;
  if (mode.find("[always]") != mode.npos) topology->huge_page_mode = HugePageMode::kAlways;
}

// A limit on addresses (ulimit -v) counts what is reserved, used or not.
void ApplyAddressLimit(Topology* topology) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= rlim_t{kUnlimitedBytes}) return;
  const std::string status = ReadFile("/proc/self/status");
  const int64_t left =
      static_cast<int64_t>(limit.rlim_cur) - FieldOf(status, "VmSize:").value_or(0);
  topology->memory_available_bytes =
      std::min(topology->memory_available_bytes, std::max<int64_t>(0, left));
}

// The directories of the group itself and of all groups around it: each may set a limit.
std::vector<std::string> GroupDirs(const std::string& mount, std::string_view group) {
  std::vector<std::string> dirs;
  while (group.size() > 1 && group.starts_with('/')) {
    dirs.push_back(mount + std::string(group));
    group = group.substr(0, group.rfind('/'));
  }
  dirs.push_back(mount);
  return dirs;
}

void ApplyQuota(int64_t quota_us, int64_t period_us, Topology* topology) {
  if (quota_us <= 0 || period_us <= 0) return;
  const double quota = static_cast<double>(quota_us) / static_cast<double>(period_us);
  topology->cpu_quota = topology->cpu_quota == 0 ? quota : std::min(topology->cpu_quota, quota);
}

// Cache of files that the group may give up counts as available.
void ApplyMemoryLimit(int64_t limit, int64_t used, int64_t reclaimable, Topology* topology) {
  if (limit <= 0 || limit >= kUnlimitedBytes) return;
  const int64_t available = std::max<int64_t>(0, limit - std::max<int64_t>(0, used - reclaimable));
  topology->memory_total_bytes = std::min(topology->memory_total_bytes, limit);
  topology->memory_available_bytes = std::min(topology->memory_available_bytes, available);
}

void ReadGroupV2(const std::string& dir, Topology* topology) {
  const std::string cpu_max = ReadFile(dir + "/cpu.max");  // "max 100000" or "150000 100000"
  const std::vector<std::string_view> parts = Split(cpu_max, ' ');
  if (parts.size() == 2) {
    ApplyQuota(ParseNumber(parts[0]).value_or(0), ParseNumber(parts[1]).value_or(0), topology);
  }
  const int64_t reclaimable = FieldOf(ReadFile(dir + "/memory.stat"), "inactive_file ").value_or(0);
  ApplyMemoryLimit(ReadNumber(dir + "/memory.max").value_or(0),
                   ReadNumber(dir + "/memory.current").value_or(0), reclaimable, topology);
}

void ReadControlGroups(const std::string& root, Topology* topology) {
  const std::string mount = root + "/sys/fs/cgroup";
  const std::string groups = ReadFile(root + "/proc/self/cgroup");
  for (std::string_view line : Split(groups, '\n')) {  // "4:memory:/a/b" or "0::/a/b"
    const std::vector<std::string_view> parts = Split(line, ':');
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      for (const std::string& dir : GroupDirs(mount, parts[2])) ReadGroupV2(dir, topology);
    }
    for (std::string_view controller : Split(parts[1], ',')) {
      for (const std::string& dir : GroupDirs(Format("{}/{}", mount, parts[1]), parts[2])) {
        if (controller == "cpu") {
          ApplyQuota(ReadNumber(dir + "/cpu.cfs_quota_us").value_or(0),
                     ReadNumber(dir + "/cpu.cfs_period_us").value_or(0), topology);
        } else if (controller == "memory") {
          const int64_t reclaimable =
              FieldOf(ReadFile(dir + "/memory.stat"), "total_inactive_file ").value_or(0);
          ApplyMemoryLimit(ReadNumber(dir + "/memory.limit_in_bytes").value_or(0),
                           ReadNumber(dir + "/memory.usage_in_bytes").value_or(0), reclaimable,
                           topology);
        }
      }
    }
  }
}

}  // namespace

Topology ReadTopology(const TopologySource& source) {
  Topology topology;
  ReadCpus(source.root, source.allowed_cpus ? *source.allowed_cpus : AffinityCpus(), &topology);
  ReadMemory(source.root, &topology);
  ReadControlGroups(source.root, &topology);
  if (source.root.empty()) ApplyAddressLimit(&topology);
  ReadNodes(source.root, &topology);
  ReadCaches(source.root, &topology);
  const std::string info = ReadFile(source.root + "/proc/cpuinfo");
  for (std::string_view line : Split(info, '\n')) {
    if (!line.starts_with("model name")) continue;
    line.remove_prefix(std::min(line.find(": "), line.size() - 2) + 2);
    topology.cpu_name = std::string(line);
    break;
  }
  return topology;
}

int ComputeThreads(const Topology& topology) {
  int threads = topology.num_cores;
  if (topology.cpu_quota > 0) threads = std::min(threads, static_cast<int>(topology.cpu_quota));
  return std::max(threads, 1);
}

}  // namespace deepinfer
