// DeepSeek-V4.1 against the records of an independent implementation, in float32: every layer of
// one prompt, log-probabilities, greedy tokens, bounded replay, prefix hits and drafts; and the
// same numbers to the bit in chunks and batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/format.h"
#include "tensor/fake_quant.h"
#include "tests/golden/v41_runner.h"

namespace deepinfer {
namespace {

constexpr const char* kDirectory = "tests/golden/data/deepseek_v41";
constexpr int kSequences = 6;
constexpr int kPositions = 160;

BackendOptions Float32() {
  return {.device = "cpu", .threads = 2, .dtype = ComputeDtype::kFloat32};
}

const Json& At(const Json& object, const char* key) {
  const Json* value = object.Find(key);
  DI_CHECK(value != nullptr, "no member {}", key);
  return *value;
}
double Number(const Json& object, const char* key) { return *At(object, key).AsDouble(); }

// The text cases; the image case needs the vision encoder.
std::vector<Json> TextCases() {
  const Json golden = ReadGoldenJson(std::string(kDirectory) + "/golden.json");
  std::vector<Json> cases;
  for (const Json& item : At(golden, "cases").items()) {
    if (item.Find("image") == nullptr) cases.push_back(item);
  }
  return cases;
}

void ExpectTop(const Json& top, const float* logits, int vocab, double tolerance) {
  const std::vector<double> got = LogProbsOf(logits, vocab);
  for (const Json& pair : top.items()) {
    EXPECT_NEAR(got[static_cast<size_t>(*pair.items()[0].AsInt())], *pair.items()[1].AsDouble(),
                tolerance);
  }
}

TEST(DeepseekV41, PromptAndGreedyTokensAgree) {
  V41Runner runner(kDirectory, Float32(), kSequences, kPositions);
  const int vocab = runner.vocab();
  int sequence = 0;
  for (const Json& golden : TextCases()) {
    SCOPED_TRACE(At(golden, "name").string());
    const std::vector<int32_t> prompt = GoldenIds(At(golden, "prompt"));
    const std::vector<int32_t> greedy = GoldenIds(At(golden, "greedy"));
    const V41Runner::Output out =
        runner.Generate(sequence++, prompt, static_cast<int>(greedy.size()), 1 << 20);
    EXPECT_EQ(out.greedy, greedy);
    const auto logprob = [&](size_t position, int32_t token) {
      return LogProbsOf(out.logits.data() + position * static_cast<size_t>(vocab),
                        vocab)[static_cast<size_t>(token)];
    };
    const std::vector<Json>& prompt_logprobs = At(golden, "prompt_logprobs").items();
    for (size_t i = 1; i < prompt.size(); ++i) {
      EXPECT_NEAR(logprob(i - 1, prompt[i]), *prompt_logprobs[i].AsDouble(),
                  Number(golden, "tolerance"))
          << "token " << i;
    }
    ExpectTop(At(golden, "last_top5"),
              out.logits.data() + (prompt.size() - 1) * static_cast<size_t>(vocab), vocab,
              Number(golden, "tolerance"));
    const std::vector<Json>& greedy_logprobs = At(golden, "greedy_logprobs").items();
    for (size_t i = 0; i < greedy.size(); ++i) {
      EXPECT_NEAR(logprob(prompt.size() - 1 + i, greedy[i]), *greedy_logprobs[i].AsDouble(),
                  Number(golden, "greedy_tolerance"))
          << "greedy token " << i;
    }
  }
}

TEST(DeepseekV41, ChunksAndBatchesAreEqualToTheBit) {
  const std::vector<Json> cases = TextCases();
  V41Runner runner(kDirectory, Float32(), kSequences, kPositions);
  std::vector<V41Runner::Output> whole;
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < cases.size(); ++i) {
    prompts.push_back(GoldenIds(At(cases[i], "prompt")));
    whole.push_back(runner.Generate(static_cast<int>(i), prompts[i], 24, 1 << 20));
  }
  for (const int chunk : {1, 7, 64}) {
    V41Runner other(kDirectory, Float32(), kSequences, kPositions);
    for (size_t i = 0; i < cases.size(); ++i) {
      const V41Runner::Output out = other.Generate(static_cast<int>(i), prompts[i], 24, chunk);
      EXPECT_EQ(out.greedy, whole[i].greedy);
      ASSERT_EQ(out.logits.size(), whole[i].logits.size());
      EXPECT_EQ(memcmp(out.logits.data(), whole[i].logits.data(), out.logits.size() * 4), 0)
          << "chunk " << chunk << ", prompt of " << prompts[i].size();
    }
  }
  // All prompts in one step, then all last tokens in one.
  V41Runner batch(kDirectory, Float32(), kSequences, kPositions);
  std::vector<V41Runner::Piece> pieces;
  for (size_t i = 0; i < cases.size(); ++i) {
    pieces.push_back({.sequence = static_cast<int>(i), .start = 0, .tokens = prompts[i]});
  }
  const std::vector<float> logits = batch.Step(pieces);
  size_t at = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const size_t count = prompts[i].size() * static_cast<size_t>(batch.vocab());
    EXPECT_EQ(memcmp(logits.data() + at, whole[i].logits.data(), count * 4), 0) << "row " << i;
    at += count;
  }
}

// ---- layers

struct Dump {
  std::vector<float> floats;
  std::vector<int32_t> ints;
  std::vector<int64_t> shape;
};

std::map<std::string, Dump> ReadDump() {
  const Json index = ReadGoldenJson(std::string(kDirectory) + "/dump/index.json");
  FILE* file = fopen((std::string(kDirectory) + "/dump/data.bin").c_str(), "rb");
  DI_CHECK(file != nullptr);
  std::map<std::string, Dump> dumps;
  for (const auto& [name, entry] : At(index, "tensors").members()) {
    Dump& dump = dumps[name];
    int64_t count = 1;
    for (const Json& dim : At(entry, "shape").items()) {
      dump.shape.push_back(*dim.AsInt());
      count *= dump.shape.back();
    }
    DI_CHECK(fseek(file, static_cast<long>(*At(entry, "offset").AsInt()), SEEK_SET) == 0);
    const auto n = static_cast<size_t>(count);
    dump.floats.resize(n);
    DI_CHECK(fread(dump.floats.data(), 4, n, file) == n);
    if (At(entry, "dtype").string() == "i32") {
      dump.ints.resize(n);
      memcpy(dump.ints.data(), dump.floats.data(), n * 4);
    }
  }
  fclose(file);
  return dumps;
}

class LayerCheck final : public V41Probe {
 public:
  explicit LayerCheck(const V41Config& config) : config_(config), dumps_(ReadDump()) {}
  int layers() const { return layers_; }

  void OnInput(const V41LayerView& view) override {
    Near(view, "x_in", view.streams);
    Near(view, "pre_in", view.pre);
    if (view.table_rows == nullptr) return;
    const Dump& want = Of(view, "engram_rows");
    for (size_t i = 0; i < want.ints.size(); ++i) {
      ASSERT_EQ(view.table_rows[i], want.ints[i]) << "layer " << view.layer << " row " << i;
    }
  }
  void OnAttention(const V41LayerView& view) override {
    Near(view, "attn", view.output);
    if (config_.IsIndexSource(view.layer)) {
      Selection(view, "selected", view.selected, view.selected_count, config_.index_top_k, 1);
    }
    if (view.layer == config_.candidate_source) {
      Selection(view, "candidates", view.candidate, view.candidate_count, config_.candidate_blocks,
                config_.candidate_block_size);
    }
  }
  void OnOutput(const V41LayerView& view) override {
    Near(view, "moe", view.output);
    Near(view, "x_out", view.streams);
    Near(view, "pre_out", view.pre);
    ++layers_;
  }

  const Dump& Of(const V41LayerView& view, const char* what) const {
    return dumps_.at(Format("L{}.{}", view.layer, what));
  }
  const std::map<std::string, Dump>& dumps() const { return dumps_; }

 private:
  void Near(const V41LayerView& view, const char* what, const float* got) {
    const Dump& want = Of(view, what);
    float largest = 1.0F;
    for (const float value : want.floats) largest = std::max(largest, std::fabs(value));
    for (size_t i = 0; i < want.floats.size(); ++i) {
      ASSERT_NEAR(got[i], want.floats[i], 1e-4F * largest)
          << what << " of layer " << view.layer << ", element " << i;
    }
  }
  // Blocks of `size` entries against the entries themselves, those not visible left out.
  void Selection(const V41LayerView& view, const char* what, const int32_t* got,
                 const int32_t* count, int stride, int size) {
    const Dump& want = Of(view, what);
    const auto width = static_cast<size_t>(want.shape[1]);
    const int ratio = config_.roles_of(view.layer).ratio;
    for (int t = 0; t < view.step->shape.num_tokens; ++t) {
      std::vector<int32_t> entries;
      for (int i = 0; i < count[t]; ++i) {
        for (int j = 0; j < size; ++j) entries.push_back(got[t * stride + i] * size + j);
      }
      std::vector<int32_t> wanted;
      const int visible = (view.step->position[t] + 1) / ratio;
      for (size_t i = 0; i < width; ++i) {
        const int32_t entry = want.ints[static_cast<size_t>(t) * width + i];
        if (entry >= 0 && entry < visible) wanted.push_back(entry);
      }
      std::erase_if(entries, [visible](int32_t entry) { return entry >= visible; });
      ASSERT_EQ(entries, wanted) << what << " of layer " << view.layer << ", token " << t;
    }
  }

  const V41Config& config_;
  std::map<std::string, Dump> dumps_;
  int layers_ = 0;
};

TEST(DeepseekV41, EveryLayerAgrees) {
  V41Runner runner(kDirectory, Float32(), 1, kPositions);
  LayerCheck check(runner.model()->config());
  runner.model()->SetProbe(&check);
  const Json index = ReadGoldenJson(std::string(kDirectory) + "/dump/index.json");
  const std::vector<int32_t> prompt = GoldenIds(At(index, "prompt"));
  runner.Step({{.sequence = 0, .start = 0, .tokens = prompt}});
  EXPECT_EQ(check.layers(), 10);
}

// ---- bounded replay and prefix hits

TEST(DeepseekV41, BoundedReplayAgreesInAnyChunks) {
  for (const Json& golden : TextCases()) {
    const Json* bounded = golden.Find("bounded");
    if (bounded == nullptr) continue;
    SCOPED_TRACE(At(golden, "name").string());
    const std::vector<int32_t> prompt = GoldenIds(At(golden, "prompt"));
    const auto total = static_cast<int>(prompt.size());
    const int keep = static_cast<int>(Number(*bounded, "keep_tokens"));
    std::vector<float> first;
    for (const int chunk : {1 << 20, 1, 7}) {
      V41Runner runner(kDirectory, Float32(), 1, kPositions);
      const int vocab = runner.vocab();
      const V41Runner::Output out =
          runner.Generate(0, prompt, 24, chunk, {.suffix_begin = total - keep});
      EXPECT_EQ(out.greedy, GoldenIds(At(*bounded, "greedy"))) << "chunk " << chunk;
      const double tolerance = Number(golden, "bounded_tolerance");
      const std::vector<Json>& tail = At(*bounded, "tail_logprobs").items();
      for (size_t i = 0; i < tail.size(); ++i) {
        const size_t position = static_cast<size_t>(total - keep) + i;
        const std::vector<double> got =
            LogProbsOf(out.logits.data() + position * static_cast<size_t>(vocab), vocab);
        EXPECT_NEAR(got[static_cast<size_t>(prompt[position + 1])], *tail[i].AsDouble(), tolerance)
            << "chunk " << chunk << " position " << position;
      }
      ExpectTop(At(*bounded, "last_top5"),
                out.logits.data() + static_cast<size_t>(total - 1) * static_cast<size_t>(vocab),
                vocab, tolerance);
      EXPECT_TRUE(std::isnan(out.logits[0])) << "a token before the suffix has no logits";
      const size_t skip = static_cast<size_t>(total - keep) * static_cast<size_t>(vocab);
      if (first.empty()) first = out.logits;
      EXPECT_EQ(memcmp(out.logits.data() + skip, first.data() + skip, (first.size() - skip) * 4), 0)
          << "chunk " << chunk;
    }
  }
}

TEST(DeepseekV41, PrefixHitsReplayOneWindow) {
  int hits = 0;
  for (const Json& golden : TextCases()) {
    const Json* list = golden.Find("prefix_hits");
    if (list == nullptr) continue;
    const std::vector<int32_t> prompt = GoldenIds(At(golden, "prompt"));
    for (const Json& hit : list->items()) {
      const int at = static_cast<int>(Number(hit, "hit"));
      SCOPED_TRACE(at);
      for (const int chunk : {1 << 20, 7}) {
        // The donor fills the blocks, its slot is lost, and nothing past the hit may be read.
        V41Runner runner(kDirectory, Float32(), 1, kPositions);
        runner.Step({{.sequence = 0, .start = 0, .tokens = {prompt.begin(), prompt.begin() + at}}});
        runner.rows()->PoisonSlots();
        const V41Replay replay{.replay_begin = static_cast<int>(Number(hit, "recompute_from")),
                               .write_floor = at,
                               .suffix_begin = static_cast<int>(prompt.size()) -
                                               static_cast<int>(Number(hit, "keep_tokens"))};
        const V41Runner::Output out =
            runner.Generate(0, prompt, 24, chunk, replay, replay.replay_begin);
        EXPECT_EQ(out.greedy, GoldenIds(At(hit, "greedy"))) << "chunk " << chunk;
        const auto vocab = static_cast<size_t>(runner.vocab());
        const size_t last = prompt.size() - 1 - static_cast<size_t>(replay.replay_begin);
        ExpectTop(At(hit, "last_top5"), out.logits.data() + last * vocab, runner.vocab(),
                  Number(golden, "bounded_tolerance"));
        ++hits;
      }
    }
  }
  EXPECT_EQ(hits, 4);
}

// ---- drafts

// Drafts and verifies as recorded; what is rejected was run and is then run over.
void ExpectDrafts(const Json& golden, const Json& record, int suffix_begin) {
  V41Runner runner(kDirectory, Float32(), 1, kPositions);
  const auto vocab = static_cast<size_t>(runner.vocab());
  const std::vector<int32_t> prompt = GoldenIds(At(golden, "prompt"));
  const V41Replay replay{.suffix_begin = suffix_begin};
  runner.Step({{.sequence = 0, .start = 0, .tokens = prompt, .replay = replay}});
  for (const Json& step : At(record, "steps").items()) {
    const int position = static_cast<int>(Number(step, "position"));
    SCOPED_TRACE(Format("position {}", position));
    const auto anchor = static_cast<int32_t>(Number(step, "anchor"));
    const V41Runner::Draft draft = runner.DraftBlock(0, position, anchor, suffix_begin);
    ASSERT_EQ(draft.tokens, GoldenIds(At(step, "draft")));
    const std::vector<Json>& confidence = At(step, "confidence_logit").items();
    for (size_t i = 0; i < confidence.size(); ++i) {
      EXPECT_NEAR(draft.confidence[i], *confidence[i].AsDouble(),
                  Number(golden, "confidence_tolerance"));
    }
    std::vector<int32_t> tokens = {anchor};
    tokens.insert(tokens.end(), draft.tokens.begin(), draft.tokens.end());
    const std::vector<float> logits =
        runner.Step({{.sequence = 0, .start = position, .tokens = tokens, .replay = replay}});
    int accepted = 0;
    for (; accepted < static_cast<int>(draft.tokens.size()); ++accepted) {
      const float* row = logits.data() + static_cast<size_t>(accepted) * vocab;
      const auto best = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
      if (best != draft.tokens[static_cast<size_t>(accepted)]) break;
    }
    EXPECT_EQ(accepted, static_cast<int>(Number(step, "accepted")));
  }
}

TEST(DeepseekV41, DraftsAgree) {
  int records = 0;
  for (const Json& golden : TextCases()) {
    SCOPED_TRACE(At(golden, "name").string());
    ExpectDrafts(golden, At(golden, "dspark"), 0);
    ++records;
    if (golden.Find("dspark_bounded") == nullptr) continue;
    const auto total = static_cast<int>(At(golden, "prompt").items().size());
    const int keep = static_cast<int>(Number(At(golden, "bounded"), "keep_tokens"));
    ExpectDrafts(golden, At(golden, "dspark_bounded"), total - keep);
    ++records;
  }
  EXPECT_EQ(records, 7);
}

}  // namespace
}  // namespace deepinfer
