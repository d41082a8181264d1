// The tables of prompt_profile.h: what DeepSeek V4 and V4.1 were trained on, byte for byte.
#include "text/prompt_profile.h"

namespace deepinfer {
namespace {

constexpr std::string_view kToolsHead =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<{calls}>\" block like the following:\n\n"
    "<{calls}>\n"
    "<{invoke} name=\"$TOOL_NAME\">\n"
    "<{parameter} name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</{parameter}>\n"
    "...\n"
    "</{invoke}>\n"
    "<{invoke} name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</{invoke}>\n"
    "</{calls}>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";
constexpr std::string_view kJsonSchema =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

constexpr EffortLevel kEffortsV41[] = {
    {"minimal", "50"}, {"low", "50"},    {"medium", "75"}, {"high", "75"},
    {"xhigh", "75"},   {"ultra", "100"}, {"max", "100"},
};

constexpr std::string_view kMuch =
    "Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.";
constexpr std::string_view kMost =
    "Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.";
constexpr EffortLevel kEffortsV4[] = {
    {"minimal", ""},  {"low", ""},      {"medium", kMuch}, {"high", kMuch},
    {"xhigh", kMuch}, {"ultra", kMost}, {"max", kMost},
};

constexpr PromptProfile kProfiles[] = {
    {
        .name = "deepseek_v41",
        .bos = "<｜begin▁of▁sentence｜>",
        .eos = "<｜end▁of▁sentence｜>",
        .user = "<｜User｜>",
        .assistant = "<｜Assistant｜>",
        .think = "<think>",
        .think_end = "</think>",
        .reminder = "<｜latest_reminder｜>",
        .system = "<｜System｜>",
        .dsml = "｜DSML｜",
        .efforts = kEffortsV41,
        .effort_default = "high",
        .effort_line = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough "
                       "the reasoning)\n\n",
        .effort_min = 1,
        .effort_max = 100,
        .systems = PromptProfile::Systems::kInPlace,
        .users = PromptProfile::Users::kJoined,
        .calls_tag = " calls",
        .invoke_tag = " invoke",
        .parameter_tag = " parameter",
        .no_parameters = "\n",
        .numbers = PromptProfile::Numbers::kPython,
        .tools_head = kToolsHead,
        .tools_tail = kToolsTail,
        .json_object = "## Response Format:\n\nYou MUST strictly adhere to the following schema to "
                       "reply:\n{\"type\": \"json_object\"}",
        .json_schema = kJsonSchema,
    },
    {
        .name = "deepseek_v4",
        .bos = "<｜begin▁of▁sentence｜>",
        .eos = "<｜end▁of▁sentence｜>",
        .user = "<｜User｜>",
        .assistant = "<｜Assistant｜>",
        .think = "<think>",
        .think_end = "</think>",
        .reminder = "<｜latest_reminder｜>",
        .system = "",
        .dsml = "｜DSML｜",
        .efforts = kEffortsV4,
        .effort_default = "high",
        .effort_line = "Reasoning Effort: {}\n\n",
        .effort_min = 0,
        .effort_max = 0,
        .systems = PromptProfile::Systems::kMerged,
        .users = PromptProfile::Users::kJoinedNonEmpty,
        .calls_tag = "tool_calls",
        .invoke_tag = "invoke",
        .parameter_tag = "parameter",
        .no_parameters = "",
        .numbers = PromptProfile::Numbers::kShort,
        .tools_head = kToolsHead,
        .tools_tail = kToolsTail,
        .json_object = "You are a helpful assistant designed to output JSON.\n## Response "
                       "Format:\n\nReply with JSON object ONLY.",
        .json_schema = kJsonSchema,
    },
};

}  // namespace

std::span<const PromptProfile> PromptProfiles() { return kProfiles; }

}  // namespace deepinfer
