#include "engine/spec/create_drafter.h"

#include <algorithm>

#include "base/format.h"
#include "base/logging.h"
#include "engine/spec/model_drafter.h"
#include "engine/spec/ngram_drafter.h"

namespace deepinfer {
namespace {

constexpr int kLookupMax = 64;
constexpr int kLookupDefault = 5;  // vLLM's

}  // namespace

Status CheckSpeculative(const SpeculativeConfig& config) {
  if (config.method != "auto" && config.method != "none" && config.method != "ngram" &&
      config.method != "dspark") {
    return Invalid(Format("the speculative method is '{}'; it must be auto, none, ngram or dspark",
                          config.method))
        .WithParam("speculative.method");
  }
  if (config.verify != "shared" && config.verify != "rejection") {
    return Invalid(Format("spec_verify is '{}'; it must be shared or rejection", config.verify))
        .WithParam("speculative.verify");
  }
  const auto range = [](const char* name, int value, int low, int high) -> Status {
    if (value >= low && value <= high) return {};
    return Invalid(Format("{} is {}; it must be between {} and {}", name, value, low, high))
        .WithParam(std::string("speculative.") + name);
  };
  DI_TRY(range("num_speculative_tokens", config.num_speculative_tokens, 0, kDraftTokensMax));
  DI_TRY(range("prompt_lookup_max", config.prompt_lookup_max, 0, kLookupMax));
  DI_TRY(range("prompt_lookup_min", config.prompt_lookup_min, 0, kLookupMax));
  if (config.prompt_lookup_max > 0 && config.prompt_lookup_min > config.prompt_lookup_max) {
    return Invalid(Format("prompt_lookup_min is {} and prompt_lookup_max is {}; the first must not "
                          "be larger",
                          config.prompt_lookup_min, config.prompt_lookup_max))
        .WithParam("speculative.prompt_lookup_min");
  }
  return {};
}

Result<DrafterChoice> CreateDrafter(const SpeculativeConfig& config, Model* model) {
  DI_TRY(CheckSpeculative(config));
  const DraftInfo info = model->draft_info();
  std::string method = config.method;
  if (method == "auto") {
    if (!info.note.empty()) LogInfo("no drafts: {}", info.note);
    method = info.block > 0 ? "dspark" : "none";
  }
  DrafterChoice choice;
  choice.draft_tokens_max = config.num_speculative_tokens;
  if (method == "none" || config.num_speculative_tokens == 0) return DrafterChoice{};
  if (model->cache_layout().has_state()) {
    // What rings can take back.
    choice.draft_tokens_max = std::min(choice.draft_tokens_max, model->cache_layout().rollback_max);
  }
  if (method == "ngram") {
    int most = config.prompt_lookup_max;
    int least = config.prompt_lookup_min;
    if (most == 0) most = least == 0 ? kLookupDefault : least;
    if (least == 0) least = most;
    choice.drafter = std::make_unique<NgramDrafter>(least, most);
  } else {
    if (info.block == 0) {
      return Invalid(Format("the speculative method dspark needs draft layers, and this model has "
                            "none{}{}; use ngram or none",
                            info.note.empty() ? "" : ": ", info.note))
          .WithParam("speculative.method");
    }
    choice.draft_tokens_max = std::min(choice.draft_tokens_max, info.block);
    choice.drafter = std::make_unique<ModelDrafter>(model);
  }
  if (choice.draft_tokens_max == 0) return DrafterChoice{};
  return choice;
}

}  // namespace deepinfer
