#include "tests/golden/v41_runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "models/checkpoint.h"
#include "models/registry.h"

namespace deepinfer {

Json ReadGoldenJson(const std::string& path) {
  FILE* file = fopen(path.c_str(), "rb");
  DI_CHECK(file != nullptr, "{} cannot be opened", path);
  std::string text;
  char buffer[65536];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
  fclose(file);
  Result<Json> json = Json::Parse(text);
  DI_CHECK(json.ok(), "{}: {}", path, json.status().message());
  return std::move(json).value();
}

std::vector<int32_t> GoldenIds(const Json& array) {
  std::vector<int32_t> ids;
  for (const Json& item : array.items()) ids.push_back(static_cast<int32_t>(*item.AsInt()));
  return ids;
}

std::vector<double> LogProbsOf(const float* logits, int vocab) {
  const double max = *std::max_element(logits, logits + vocab);
  double sum = 0.0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(double{logits[i]} - max);
  std::vector<double> result;
  for (int i = 0; i < vocab; ++i) result.push_back(double{logits[i]} - max - std::log(sum));
  return result;
}

V41Runner::V41Runner(const std::string& directory, const BackendOptions& options, int sequences,
                     int positions_max) {
  Result<std::unique_ptr<Backend>> backend = CreateBackend(options);
  DI_CHECK(backend.ok(), "{}", backend.status().message());
  backend_ = std::move(backend).value();
  Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(directory);
  DI_CHECK(checkpoint.ok(), "{}", checkpoint.status().message());
  Result<std::unique_ptr<Model>> model = LoadModel(**checkpoint, backend_.get());
  DI_CHECK(model.ok(), "{}", model.status().message());
  owned_ = std::move(model).value();
  model_ = static_cast<V41Model*>(owned_.get());
  model_->EnableDrafting();
  rows_ =
      std::make_unique<HostRows>(backend_.get(), model_->cache_layout(), sequences, positions_max);
}

std::vector<float> V41Runner::Step(const std::vector<Piece>& pieces) {
  std::vector<HostRows::Query> queries;
  std::vector<int32_t> replay, floor, suffix, lead;
  bool bounded = false;
  for (const Piece& piece : pieces) {
    queries.push_back({.sequence = piece.sequence, .start = piece.start, .tokens = piece.tokens});
    replay.push_back(piece.replay.replay_begin);
    floor.push_back(piece.replay.write_floor);
    suffix.push_back(piece.replay.suffix_begin);
    bounded = bounded || piece.replay.suffix_begin > 0;
    for (int i = 0; i < kLeadTokens; ++i) {
      lead.push_back(static_cast<size_t>(i) < piece.lead.size() ? piece.lead[static_cast<size_t>(i)]
                                                                : -1);
    }
  }
  StepInput step = rows_->Step(queries);
  step.replay_begin = replay.data();
  step.write_floor = floor.data();
  step.lead_token = lead.data();
  if (bounded) step.suffix_begin = suffix.data();
  last_ = step;
  const float* hidden = model_->Forward(step);
  std::vector<int32_t> all(static_cast<size_t>(step.shape.num_tokens));
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> logits(all.size() * static_cast<size_t>(vocab()));
  model_->Head(hidden, all.data(), step.shape.num_tokens, logits.data());
  return logits;
}

V41Runner::Output V41Runner::Generate(int sequence, const std::vector<int32_t>& prompt, int count,
                                      int chunk, const V41Replay& replay, int start) {
  Output out;
  std::vector<int32_t> tokens = prompt;
  const auto width = static_cast<size_t>(vocab());
  auto done = static_cast<size_t>(start);
  while (out.greedy.size() < static_cast<size_t>(count)) {
    const size_t take = std::min(tokens.size() - done, static_cast<size_t>(chunk));
    Piece piece{.sequence = sequence, .start = static_cast<int>(done), .replay = replay};
    piece.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(done),
                        tokens.begin() + static_cast<ptrdiff_t>(done + take));
    for (size_t i = 1; done == static_cast<size_t>(start) && i <= kLeadTokens && i <= done; ++i) {
      piece.lead.push_back(tokens[done - i]);
    }
    const std::vector<float> logits = Step({piece});
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    done += take;
    if (done < tokens.size()) continue;
    const float* last = out.logits.data() + out.logits.size() - width;
    out.greedy.push_back(static_cast<int32_t>(std::max_element(last, last + width) - last));
    tokens.push_back(out.greedy.back());
  }
  return out;
}

V41Runner::Draft V41Runner::DraftBlock(int sequence, int position, int32_t anchor,
                                       int suffix_begin) {
  const int block = model_->draft_info().block;
  Draft draft;
  draft.tokens.resize(static_cast<size_t>(block));
  draft.confidence.resize(static_cast<size_t>(block));
  const int32_t at = position;
  const int32_t slot = sequence;
  const int32_t suffix = suffix_begin;
  model_->DraftBlock({.rows = 1,
                      .anchor = &anchor,
                      .position = &at,
                      .slot = &slot,
                      .suffix_begin = &suffix,
                      .cache_slots = last_.cache_slots,
                      .layout = last_.layout},
                     {.token = draft.tokens.data(), .confidence = draft.confidence.data()});
  return draft;
}

}  // namespace deepinfer
