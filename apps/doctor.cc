// `deepinfer doctor`: what this machine offers and how a model would fit into it.
#include <cstdio>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/memory_probe.h"
#include "apps/model_path.h"
#include "backend/cpu/packed_linear.h"
#include "base/env.h"
#include "base/format.h"
#include "base/json.h"
#include "base/topology.h"
#include "engine/memory_plan.h"
#include "models/checkpoint.h"
#include "models/registry.h"

namespace deepinfer {
namespace {

// "48.0 KiB", "1.0 MiB", "23.5 GiB".
std::string SizeText(int64_t bytes) {
  double value = static_cast<double>(bytes) / 1024.0;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB", "TiB"}) {
    if (value < 1024.0) break;
    value /= 1024.0;
    unit = larger;
  }
  return Format("{:.1f} {}", value, unit);
}

std::string_view HugePageName(HugePageMode mode) {
  switch (mode) {
    case HugePageMode::kNever:
      return "never";
    case HugePageMode::kMadvise:
      return "madvise";
    case HugePageMode::kAlways:
      return "always";
    case HugePageMode::kUnknown:
      break;
  }
  return "unknown";
}

Json DescribeMachine(const Topology& machine) {
  Json out = Json::Object();
  out.Set("cpu", Json::String(machine.cpu_name));
  out.Set("logical_cpus", Json::Int(static_cast<int64_t>(machine.cpus.size())));
  out.Set("physical_cores", Json::Int(machine.num_cores));
  out.Set("compute_threads", Json::Int(ComputeThreads(machine)));
  out.Set("cpu_quota", machine.cpu_quota > 0 ? Json::Double(machine.cpu_quota) : Json());
  out.Set("numa_nodes", Json::Int(static_cast<int64_t>(machine.nodes.size())));
  out.Set("l1d_bytes", Json::Int(machine.l1d_bytes));
  out.Set("l2_bytes", Json::Int(machine.l2_bytes));
  out.Set("l3_bytes", Json::Int(machine.l3_bytes));
  out.Set("transparent_huge_pages",
          Json::String(std::string(HugePageName(machine.huge_page_mode))));
  out.Set("memory_total_bytes", Json::Int(machine.memory_total_bytes));
  out.Set("memory_available_bytes", Json::Int(machine.memory_available_bytes));
  return out;
}

// What a cache of the default settings would hold in what the weights leave.
Status DescribeCache(const Checkpoint& checkpoint, int64_t left, Json* out) {
  constexpr int kElementBytes = 2;  // of the default arithmetic
  const EngineConfig config;
  DI_ASSIGN(const CacheLayout whole, LayoutOfModel(checkpoint, kElementBytes));
  DI_ASSIGN(const CacheLayout layout, LayoutInBlocks(whole, config.block_size));
  const int64_t block_tokens = layout.block_tokens;
  const int64_t block_bytes = layout.block_bytes();
  out->Set("kv_bytes_per_token", Json::Int((block_bytes + block_tokens - 1) / block_tokens));
  if (layout.has_state()) out->Set("state_bytes_per_sequence", Json::Int(layout.slot_bytes()));
  const int context = checkpoint.config().context_max;
  const Result<MemoryPlan> plan = PlanMemory(config, layout, context, left);
  if (plan.ok()) {
    out->Set("kv_cache_bytes", Json::Int(plan->kv_bytes));
    if (layout.has_state()) out->Set("state_cache_bytes", Json::Int(plan->state_bytes));
    out->Set("kv_tokens", Json::Int(plan->num_blocks * block_tokens));
    out->Set("max_model_len", Json::Int(plan->max_model_len));
  }
  out->Set("fits", Json::Bool(plan.ok()));
  return {};
}

// What loading the model would need: packed weights are about as large as the file's tensors.
Result<Json> DescribeModel(const std::string& model, const Topology& machine) {
  DI_ASSIGN(const std::string path, ResolveModelPath(model));
  DI_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  const ModelConfig& config = checkpoint->config();
  int64_t weights = 0;
  for (const TensorView& view : checkpoint->file().tensors()) {
    weights += static_cast<int64_t>(view.bytes);
  }
  Json out = Json::Object();
  out.Set("path", Json::String(path));
  out.Set("architecture", Json::String(config.architecture));
  out.Set("parameters", Json::Int(checkpoint->parameters()));
  out.Set("weight_bytes", Json::Int(weights));
  out.Set("context", Json::Int(config.context_max));
  DI_TRY(DescribeCache(*checkpoint, machine.memory_available_bytes - weights, &out));
  return out;
}

void PrintReport(const Json& report) {
  for (const auto& [key, value] : report.members()) {
    if (value.is_object()) {
      std::printf("%s\n", key.c_str());
      for (const auto& [name, inner] : value.members()) {
        const Result<int64_t> bytes = inner.AsInt();
        const bool is_bytes = name.find("_bytes") != std::string::npos && bytes.ok();
        std::printf("  %-24s %s\n", name.c_str(),
                    is_bytes            ? SizeText(*bytes).c_str()
                    : inner.is_string() ? inner.string().c_str()
                                        : inner.Dump().c_str());
      }
    } else {
      std::printf("%-26s %s\n", key.c_str(),
                  value.is_string() ? value.string().c_str() : value.Dump().c_str());
    }
  }
}

}  // namespace

int RunDoctor(int argc, char** argv) {
  std::string model;
  bool measure = false;
  bool as_json = false;
  CommandLine flags("deepinfer doctor", "look at this machine and at how a model fits into it");
  flags.Add("--model,-m,model", &model, "plan the memory of this model as well");
  flags.AddSwitch("--measure", &measure, "measure memory bandwidth (takes some seconds)");
  flags.AddSwitch("--json", &as_json, "print JSON");
  if (const std::optional<int> code = flags.Parse(argc, argv)) return *code;

  const Topology machine = ReadTopology();
  Json report = Json::Object();
  report.Set("machine", DescribeMachine(machine));
  const std::string forced = GetEnv("DEEPINFER_CPU_ISA").value_or("");
  const Result<cpu::Isa> isa = cpu::DetectIsa(forced);
  if (!isa.ok()) return Fail("doctor", isa.status());
  report.Set("isa", Json::String(std::string(cpu::IsaName(*isa))));
  if (measure) {
    constexpr size_t kProbeBytes = size_t{512} << 20;
    const MemoryRates rates = MeasureMemory(ComputeThreads(machine), kProbeBytes);
    report.Set("memory_read_gb_s", Json::Double(rates.read_gb_s));
    report.Set("memory_copy_gb_s", Json::Double(rates.copy_gb_s));
  }
  if (!model.empty()) {
    Result<Json> plan = DescribeModel(model, machine);
    if (!plan.ok()) return Fail("doctor", plan.status());
    report.Set("model", std::move(plan).value());
  }
  if (as_json) {
    std::printf("%s\n", report.Dump(2).c_str());
  } else {
    PrintReport(report);
  }
  return kExitOk;
}

}  // namespace deepinfer
