// A golden checkpoint with its reference outputs, and a host loop that runs its cases straight on
// the Model: prompts in chunks, alone or all in one batch, then greedy tokens. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint.h"
#include "models/model.h"
#include "models/registry.h"

namespace deepinfer {

struct GoldenCase {
  std::vector<int32_t> prompt;
  std::vector<double> prompt_logprobs;  // of prompt[i] after its predecessors; [0] is unused
  std::vector<std::pair<int32_t, double>> last_top;  // likeliest next tokens
  std::vector<int32_t> greedy;
  double min_margin = 0.0;  // smallest gap of the two best logits along greedy
};

// Aborts with the reason when a file of the test's own data cannot be read.
std::vector<GoldenCase> ReadGolden(const std::string& directory);

struct CaseOutput {
  std::vector<float> logits;    // [prompt + greedy, vocab]: after every token
  std::vector<int32_t> greedy;  // argmax after the prompt and after each token of it
};

struct RunMode {
  int chunk = 1 << 20;  // prompt tokens of a row in one step
  bool batch = false;   // all cases in every step
};

// Which of equal index scores a model takes (reference_ties.h).
enum class TieOrder { kProduct, kReference };

class GoldenModel {
 public:
  // A Result: the machine may lack the ISA.
  static Result<std::unique_ptr<GoldenModel>> Open(const std::string& directory,
                                                   const BackendOptions& options,
                                                   TieOrder ties = TieOrder::kProduct);
  int vocab() const { return model_->info().vocab; }
  Model& model() { return *model_; }
  Backend& backend() { return *backend_; }
  std::vector<CaseOutput> Run(const std::vector<GoldenCase>& cases, const RunMode& mode);

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
};

}  // namespace deepinfer
