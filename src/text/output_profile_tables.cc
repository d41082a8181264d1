// The tables of output_machine.h: how model families write reasoning and tool calls.
#include "text/output_machine.h"

namespace deepinfer {
namespace {

using Calls = OutputProfile::Calls;

// A model of one version now and then closes as the other does.
constexpr std::string_view kBlockEnds[] = {
    "</｜DSML｜ calls>",
    "</｜DSML｜tool_calls>",
    "</｜DSML｜function_calls>",
};

// V4 and V4.1 differ in the names of the block around calls alone; either ends a block.
constexpr OutputProfile Dsml(std::string_view name) {
  return {
      .name = name,
      .think = "<think>",
      .think_end = "</think>",
      .calls = Calls::kTags,
      .mark = "<｜DSML｜",
      .mark_end = "</｜DSML｜",
      .invoke = "invoke name=\"",
      .parameter = "parameter name=\"",
      .block_ends = kBlockEnds,
  };
}

constexpr OutputProfile kProfiles[] = {
    Dsml("deepseek_v41"),
    Dsml("deepseek_v4"),
    {
        // Hermes, Qwen 2.5 and 3.
        .name = "hermes",
        .think = "<think>",
        .think_end = "</think>",
        .calls = Calls::kMarkedJson,
        .mark = "<tool_call>",
        .mark_end = "</tool_call>",
    },
    {
        // Llama 3.1 and later.
        .name = "llama_json",
        .calls = Calls::kBareJson,
        .mark = "<|python_tag|>",
    },
    {
        .name = "reasoning",
        .think = "<think>",
        .think_end = "</think>",
    },
    {
        .name = "plain",
    },
};

}  // namespace

std::span<const OutputProfile> OutputProfiles() { return kProfiles; }

const OutputProfile* FindOutputProfile(std::string_view name) {
  for (const OutputProfile& profile : kProfiles) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

}  // namespace deepinfer
