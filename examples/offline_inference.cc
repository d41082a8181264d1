// Offline generation from C++: offline_inference MODEL PROMPT...
#include <cstdio>
#include <string>
#include <vector>

#include "deepinfer/llm.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: offline_inference MODEL PROMPT...\n");
    return 2;
  }
  deepinfer::LlmOptions options;
  options.model = argv[1];
  const auto llm = deepinfer::LLM::Create(options);
  if (!llm.ok()) {
    std::fprintf(stderr, "%s\n", llm.status().message().c_str());
    return 1;
  }
  deepinfer::SamplingParams sampling;
  sampling.temperature = 0.8F;
  sampling.top_p = 0.95F;
  sampling.seed = 1;
  sampling.max_tokens = 64;
  const std::vector<std::string> prompts(argv + 2, argv + argc);
  const auto outputs = (*llm)->Generate(prompts, sampling);
  int failed = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].status.ok()) {
      std::fprintf(stderr, "prompt %zu: %s\n", i, outputs[i].status.message().c_str());
      ++failed;
      continue;
    }
    std::printf("%s%s\n\n", prompts[i].c_str(), outputs[i].completions.front().text.c_str());
  }
  return failed == 0 ? 0 : 1;
}
