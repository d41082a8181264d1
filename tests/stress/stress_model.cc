// stress_model MODEL [float32]: the stress list on any checkpoint, for runs by hand. Prints one
// line a mode; exit status 1 when an answer differs from the plain run.
#include <cstdio>
#include <string>

#include "base/rng.h"
#include "tests/stress/stress_rig.h"

namespace deepinfer {
namespace {

std::vector<Ask> MakeAsks(int vocab) {
  std::vector<Ask> asks;
  uint32_t counter = 0;
  for (const int length : {1, 5, 17, 40, 97, 260}) {
    Ask ask;
    for (int i = 0; i < length; ++i) {
      ask.prompt.push_back(static_cast<TokenId>(Philox4x32(7, {counter++, 0, 0, 0})[0] %
                                                static_cast<uint32_t>(vocab)));
    }
    ask.sampling.temperature = length % 2 == 0 ? 0.0F : 0.9F;
    ask.sampling.seed = length;
    ask.sampling.max_tokens = 24;
    ask.sampling.ignore_eos = true;
    ask.sampling.logprobs = 5;
    asks.push_back(std::move(ask));
  }
  return asks;
}

int Run(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: stress_model MODEL [float32]\n");
    return 2;
  }
  LoadOptions options;
  options.path = argv[1];
  if (argc > 2 && std::string(argv[2]) == "float32") options.backend.dtype = ComputeDtype::kFloat32;
  Result<std::unique_ptr<LoadedModel>> model = OpenModel(options);
  if (!model.ok()) {
    fprintf(stderr, "%s\n", model.status().message().c_str());
    return 1;
  }
  const std::vector<Ask> asks = MakeAsks((*model)->model->info().vocab);
  const std::vector<Answer> plain = RunAsks(model->get(), asks, {});
  int failures = 0;
  std::vector<StressMode> modes(StressModes().begin(), StressModes().end());
  const std::vector<StressMode> drafts = DraftModes(*(*model)->model);
  modes.insert(modes.end(), drafts.begin(), drafts.end());
  for (const StressMode& mode : modes) {
    const std::vector<Answer> answers = RunAsks(model->get(), asks, mode, plain);
    std::string difference;
    for (size_t i = 0; i < asks.size() && difference.empty(); ++i) {
      difference = Difference(plain[i], answers[i]);
    }
    printf("%-28s %s\n", mode.name, difference.empty() ? "equal" : difference.c_str());
    fflush(stdout);
    failures += difference.empty() ? 0 : 1;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Run(argc, argv); }
