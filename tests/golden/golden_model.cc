#include "tests/golden/golden_model.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "tests/golden/reference_ties.h"
#include "tests/harness/host_rows.h"

namespace deepinfer {
namespace {

std::string ReadFile(const std::string& path) {
  FILE* file = fopen(path.c_str(), "rb");
  DI_CHECK(file != nullptr, "{} cannot be opened", path);
  std::string text;
  char buffer[65536];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
  fclose(file);
  return text;
}

const Json& Member(const Json& object, const char* key) {
  const Json* value = object.Find(key);
  DI_CHECK(value != nullptr, "no member {}", key);
  return *value;
}

std::vector<int32_t> Ids(const Json& array) {
  std::vector<int32_t> ids;
  for (const Json& item : array.items()) ids.push_back(static_cast<int32_t>(*item.AsInt()));
  return ids;
}

int32_t ArgMax(const float* logits, int vocab) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
}

// Where one case stands: all tokens known so far, and how many of them were run.
struct Progress {
  std::vector<int32_t> tokens;
  size_t done = 0;
  size_t total = 0;  // tokens to run: the prompt and all greedy tokens but the last
};

}  // namespace

std::vector<GoldenCase> ReadGolden(const std::string& directory) {
  Result<Json> json = Json::Parse(ReadFile(directory + "/golden.json"));
  DI_CHECK(json.ok(), "{}", json.status().message());
  std::vector<GoldenCase> cases;
  for (const Json& item : Member(*json, "cases").items()) {
    GoldenCase golden;
    golden.prompt = Ids(Member(item, "prompt"));
    golden.greedy = Ids(Member(item, "greedy"));
    golden.min_margin = *Member(item, "min_margin").AsDouble();
    for (const Json& value : Member(item, "prompt_logprobs").items()) {
      golden.prompt_logprobs.push_back(value.is_null() ? 0.0 : *value.AsDouble());
    }
    for (const Json& pair : Member(item, "last_top5").items()) {
      golden.last_top.emplace_back(static_cast<int32_t>(*pair.items()[0].AsInt()),
                                   *pair.items()[1].AsDouble());
    }
    cases.push_back(std::move(golden));
  }
  return cases;
}

Result<std::unique_ptr<GoldenModel>> GoldenModel::Open(const std::string& directory,
                                                       const BackendOptions& options,
                                                       TieOrder ties) {
  auto golden = std::make_unique<GoldenModel>();
  DI_ASSIGN(golden->backend_, CreateBackend(options));
  if (ties == TieOrder::kReference) {
    golden->backend_ = WithReferenceTies(std::move(golden->backend_));
  }
  DI_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  DI_ASSIGN(golden->model_, LoadModel(*checkpoint, golden->backend_.get()));
  return golden;
}

std::vector<CaseOutput> GoldenModel::Run(const std::vector<GoldenCase>& cases,
                                         const RunMode& mode) {
  std::vector<CaseOutput> outputs(cases.size());
  std::vector<Progress> progress(cases.size());
  size_t longest = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    progress[i].tokens = cases[i].prompt;
    progress[i].total = cases[i].prompt.size() + cases[i].greedy.size() - 1;
    longest = std::max(longest, progress[i].total);
  }
  HostRows rows(backend_.get(), model_->cache_layout(), static_cast<int>(cases.size()),
                static_cast<int>(longest));
  const auto width = static_cast<size_t>(vocab());
  for (;;) {
    std::vector<HostRows::Query> queries;
    for (size_t i = 0; i < cases.size(); ++i) {
      Progress& at = progress[i];
      if (at.done == at.total || (!mode.batch && !queries.empty())) continue;
      const size_t count = std::min(at.tokens.size() - at.done, static_cast<size_t>(mode.chunk));
      const auto begin = at.tokens.begin() + static_cast<int64_t>(at.done);
      queries.push_back({.sequence = static_cast<int>(i),
                         .start = static_cast<int>(at.done),
                         .tokens = {begin, begin + static_cast<int64_t>(count)}});
    }
    if (queries.empty()) break;
    const StepInput step = rows.Step(queries);
    const float* hidden = model_->Forward(step);
    std::vector<int32_t> all(static_cast<size_t>(step.shape.num_tokens));
    std::iota(all.begin(), all.end(), 0);
    std::vector<float> logits(all.size() * width);
    model_->Head(hidden, all.data(), step.shape.num_tokens, logits.data());
    const float* next = logits.data();
    for (const HostRows::Query& query : queries) {
      const auto i = static_cast<size_t>(query.sequence);
      const float* end = next + query.tokens.size() * width;
      outputs[i].logits.insert(outputs[i].logits.end(), next, end);
      next = end;
      progress[i].done += query.tokens.size();
      if (progress[i].done < progress[i].tokens.size()) continue;
      outputs[i].greedy.push_back(ArgMax(end - width, vocab()));
      progress[i].tokens.push_back(outputs[i].greedy.back());
    }
  }
  return outputs;
}

}  // namespace deepinfer
