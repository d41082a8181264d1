// How the answers of a model are read: which profile its prompt format goes with, where an answer
// starts, and the parts of each delta. A reader belongs to one sample of one response.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "api/chat_prompt.h"
#include "api/tools_json.h"
#include "deepinfer/request.h"
#include "text/output_machine.h"

namespace deepinfer {

// What is known of a model once, before any request.
struct OutputStyle {
  const OutputProfile* profile = nullptr;  // nullptr: answers are plain text
  enum class Tools { kAbsent, kRendered } tools = Tools::kAbsent;  // in prompts
  TokenId think = -1, think_end = -1;                              // -1: no token of their own
};

// Finds out by rendering a conversation with a tool and a call. All parts may be nullptr.
OutputStyle ProbeOutputStyle(const Tokenizer* tokenizer, const ChatTemplate* chat_template,
                             const PromptProfile* prompt_profile);

struct OutputPlan {
  OutputStyle style;  // without a profile: text is content as it is
  OutputMachineOptions machine;

  bool starts_in_reasoning() const {
    return machine.start == OutputMachineOptions::Start::kReasoning;
  }
};

// Errors: tools for a model whose prompts cannot show any, or whose calls cannot be read.
Result<OutputPlan> PlanOutput(const OutputStyle& style, const RenderedPrompt& prompt,
                              const ToolSet& tools);

class OutputReader {
 public:
  explicit OutputReader(const OutputPlan& plan);
  // The parts that this delta makes certain, all that are left when it ends the sample.
  std::vector<OutputPart> Read(const OutputDelta& delta);
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  int calls_complete() const { return calls_; }

 private:
  void Count(const std::vector<TokenId>& ids);

  const OutputStyle style_;
  std::unique_ptr<OutputMachine> machine_;  // nullptr: plain text
  bool reasons_;                            // by the tokens so far
  int64_t reasoning_tokens_ = 0;
  int calls_ = 0;
};

// The bound that keeps an answer read by `plan` to `tokens` of thinking; nullopt where none is to
// come, or could begin by no token of its own.
std::optional<ThinkingBudget> PlanThinking(const OutputPlan& plan, int tokens,
                                           const Tokenizer& tokenizer);

// Whether and how hard a request wants the model to think.
struct ThinkingChoice {
  std::optional<bool> on;
  Json effort;                // null, a level or a number
  std::optional<int> budget;  // tokens
};
// `thinking`: {"type": "enabled" | "adaptive" | "disabled", "budget_tokens"}, and vLLM's
// `thinking_token_budget`.
Status ReadThinking(const Json& body, ThinkingChoice* out);
// A text or a number under `key` of `body`; errors name `param`.
Status ReadEffort(const Json& body, std::string_view key, const char* param, ThinkingChoice* out);
// What the request's own chat_template_kwargs say stays.
void ApplyThinking(const ThinkingChoice& choice, ChatPromptOptions* options);

}  // namespace deepinfer
