// Offline use: open a model, generate for a list of prompts, get all answers.
// Any thread; calls of Generate may overlap. Uses the same Engine as the server.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/config.h"
#include "deepinfer/engine.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct LoadedModel;  // src/models/loaded_model.h

struct LlmOptions {
  std::string model;  // a model directory, a .gguf or a .safetensors file
  EngineConfig engine;
};

// Text, or token ids (which win when both are given).
struct Prompt {
  std::string text;
  std::vector<TokenId> token_ids;
};

struct Completion {
  int index = 0;  // sample 0..n-1
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;
  std::optional<TokenId> stop_token;
};

struct GenerateOutput {
  Status status;  // why there are no completions, when there are none
  std::vector<TokenId> prompt_token_ids;
  std::vector<std::optional<TokenLogprob>> prompt_logprobs;
  std::vector<Completion> completions;
  Usage usage;  // completion tokens of all samples
};

class LLM {
 public:
  static Result<std::unique_ptr<LLM>> Create(const LlmOptions& options);
  ~LLM();

  // Blocks until every prompt is answered; outputs are in the order of the prompts. A prompt that
  // fails has its reason in `status` and does not disturb the others.
  std::vector<GenerateOutput> Generate(std::span<const Prompt> prompts,
                                       const SamplingParams& sampling);
  // Convenience for texts.
  std::vector<GenerateOutput> Generate(std::span<const std::string> prompts,
                                       const SamplingParams& sampling);

  Engine& engine();
  const LoadedModel& model() const;

 private:
  struct Impl;
  explicit LLM(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
