// Windows of tokens compressed to entries, the choice among them and attention over both, on every
// ISA: the definition in double precision, also at released widths; and tokens that come out alike
// however their sequence was cut into steps, whoever was beside it, and after drafts were taken
// back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/compressed_ops.h"
#include "tests/harness/host_rows.h"
#include "tests/harness/memory_tensors.h"
#include "tests/ops/op_modes.h"

namespace deepinfer {
namespace {

using Reach = CompressorSpec::Reach;

constexpr int kRollback = 4;

struct Shape {
  int heads;
  int dim;
  int rope_dim;
  int window;
  int ratio;
  Reach reach;
  int index_heads = 0;  // 0: every visible entry
  int index_dim = 0;
  int top_k = 0;
  std::vector<int> lengths = {1, 9, 40, 75};
  int block_tokens = 16;

  int width(int of) const { return reach == Reach::kWindowBefore ? 2 * of : of; }
};

std::vector<Shape> Shapes() {
  return {
      {3, 20, 6, 8, 4, Reach::kWindowBefore, 2, 12, 3},
      {4, 32, 8, 16, 32, Reach::kOwnWindow},
      {2, 16, 4, 5, 2, Reach::kOwnWindow, 3, 8, 6, {1, 33}, 32},
      // More heads than one item takes for few tokens.
      {21, 16, 4, 6, 4, Reach::kWindowBefore, 2, 8, 4, {1, 50}},
  };
}

// Two layers of DeepSeek V4 as released.
std::vector<Shape> ReleasedShapes() {
  return {
      {64, 512, 64, 128, 4, Reach::kWindowBefore, 64, 128, 16, {150}},
      {64, 512, 64, 128, 128, Reach::kOwnWindow, 0, 0, 0, {260}},
  };
}

using Sequences = std::vector<std::vector<float>>;  // output of each token of each

// Inputs are a function of sequence, position and part.
enum Part { kQ, kKv, kEntryKv, kEntryGate, kKeyKv, kKeyGate, kIndexQ, kIndexWeight };
std::vector<float> Input(int sequence, int position, Part part, int count) {
  std::vector<float> x =
      RandomFloats(static_cast<uint64_t>(sequence * 100000 + position * 10 + part), count);
  for (float& value : x) value *= 2.0F;
  return x;
}

class Harness {
 public:
  Harness(Backend* backend, const Shape& shape) : backend_(backend), s_(shape) {
    for (int i = 0; i < shape.rope_dim / 2; ++i) {
      inv_freq_.push_back(
          std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(shape.rope_dim)));
    }
    kv_norm_ = Bind(kKvNorm, shape.dim);
    sinks_ = Bind(kSinks, shape.heads);
    bias_ = Bind(kBias, shape.ratio * shape.width(shape.dim));
    norm_ = Bind(kNorm, shape.dim);
    layout_.block_tokens = shape.block_tokens;
    layout_.rollback_max = kRollback;
    layout_.state.push_back({"other", 1, 3, 8});
    layout_.state.push_back({"window", 2, shape.window - 1 + kRollback,
                             int64_t{EntryElements(shape.dim)} * backend->kv_element_bytes()});
    AddGroup(shape.dim, backend->kv_element_bytes());
    if (shape.index_heads > 0) {
      key_bias_ = Bind(kKeyBias, shape.ratio * shape.width(shape.index_dim));
      key_norm_ = Bind(kKeyNorm, shape.index_dim);
      AddGroup(shape.index_dim, 4);
    }
    rows_ =
        std::make_unique<HostRows>(backend, layout_, static_cast<int>(shape.lengths.size()), 304);
  }

  enum Vector { kKvNorm = 1, kSinks, kBias, kNorm, kKeyBias, kKeyNorm };
  static std::vector<float> Values(Vector which, int count) {
    return RandomFloats(static_cast<uint64_t>(which), count);
  }
  const std::vector<float>& inv_freq() const { return inv_freq_; }

  void Step(const std::vector<HostRows::Query>& queries, int dead_per_row, Sequences* outputs) {
    const StepInput step = rows_->StepWithDeadTokens(queries, dead_per_row);
    CompressedOps* ops = backend_->compressed_ops();
    const CompressorSpec entries = Spec(s_.dim, 2, 0, bias_.get(), norm_.get());
    ops->WriteWindows(step, entries, All(step, kEntryKv, s_.width(s_.dim)).data(),
                      All(step, kEntryGate, s_.width(s_.dim)).data());
    const auto tokens = static_cast<size_t>(step.shape.num_tokens);
    std::vector<int32_t> selected(tokens * static_cast<size_t>(std::max(1, s_.top_k)), -7);
    std::vector<int32_t> count(tokens, -7);
    if (s_.index_heads > 0) Choose(step, selected.data(), count.data());
    const WindowAttentionSpec spec{.heads = s_.heads,
                                   .head_dim = s_.dim,
                                   .window = s_.window,
                                   .scale = 0.4F,
                                   .rope = {inv_freq_.data(), s_.rope_dim},
                                   .query_norm = WindowAttentionSpec::QueryNorm::kRms,
                                   .kv_norm = kv_norm_.get(),
                                   .sinks = sinks_.get(),
                                   .ring = {1, 1},
                                   .entries = {0, 1},
                                   .ratio = s_.ratio};
    std::vector<float> q = All(step, kQ, s_.heads * s_.dim);
    std::vector<float> kv = All(step, kKv, s_.dim);
    std::vector<float> out(q.size(), std::nanf(""));
    ops->Attend(step, spec,
                {.q = q.data(),
                 .kv = kv.data(),
                 .selected = s_.index_heads > 0 ? selected.data() : nullptr,
                 .selected_count = s_.index_heads > 0 ? count.data() : nullptr,
                 .selected_stride = s_.top_k,
                 .out = out.data()});
    const int64_t cols = int64_t{s_.heads} * s_.dim;
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      const auto begin = out.begin() + t * cols;
      if (step.kind[t] == TokenKind::kDead) {
        for (int64_t i = 0; i < cols; ++i) EXPECT_EQ(begin[i], 0.0F) << "dead token";
        continue;
      }
      std::vector<float>& to = (*outputs)[static_cast<size_t>(step.slot[step.token_row[t]])];
      to.insert(to.end(), begin, begin + cols);
    }
  }

  // Every sequence from its start to its end.
  Sequences RunAll(const StepCut& cut) {
    Sequences outputs(s_.lengths.size());
    RunInSteps(s_.lengths, cut, [&](const std::vector<HostRows::Query>& queries) {
      for (const HostRows::Query& query : queries) {  // what is run again is forgotten
        outputs[static_cast<size_t>(query.sequence)].resize(
            static_cast<size_t>(query.start * s_.heads * s_.dim));
      }
      Step(queries, cut.dead_per_row, &outputs);
    });
    return outputs;
  }

 private:
  std::unique_ptr<Weight> Bind(Vector which, int count) {
    const TensorView& view = tensors_.Add("vector", DType::kF32, {count}, Values(which, count));
    return std::move(backend_->Bind(tensors_, view, WeightRole::kVector)).value();
  }
  void AddGroup(int dim, int element) {
    const CompressorSpec spec = Spec(dim, 0, 0, nullptr, nullptr);
    layout_.state.push_back({"ring", 3, spec.lookback() + kRollback,
                             int64_t{2} * spec.width() * static_cast<int64_t>(sizeof(float))});
    layout_.history.push_back(
        {"entries", EntryRatio(s_.ratio), 2, int64_t{EntryElements(dim)} * element});
  }
  CompressorSpec Spec(int dim, int ring, int history, const Weight* bias,
                      const Weight* norm) const {
    return {.ring = {ring, 2},
            .entries = {history, 1},
            .dim = dim,
            .ratio = s_.ratio,
            .reach = s_.reach,
            .bias = bias,
            .norm = norm,
            .rope = {inv_freq_.data(), s_.rope_dim}};
  }
  void Choose(const StepInput& step, int32_t* selected, int32_t* count) {
    CompressorSpec keys = Spec(s_.index_dim, 3, 1, key_bias_.get(), key_norm_.get());
    keys.float32_entries = true;
    CompressedOps* ops = backend_->compressed_ops();
    ops->WriteWindows(step, keys, All(step, kKeyKv, s_.width(s_.index_dim)).data(),
                      All(step, kKeyGate, s_.width(s_.index_dim)).data());
    const EntryChoiceSpec choice{.keys = {1, 1},
                                 .ratio = s_.ratio,
                                 .heads = s_.index_heads,
                                 .dim = s_.index_dim,
                                 .top_k = s_.top_k,
                                 .scale = 0.5F,
                                 .rope = {inv_freq_.data(), s_.rope_dim}};
    std::vector<float> q = All(step, kIndexQ, s_.index_heads * s_.index_dim);
    ops->ChooseEntries(step, choice, q.data(), All(step, kIndexWeight, s_.index_heads).data(),
                       selected, count);
  }
  static std::vector<float> All(const StepInput& step, Part part, int count) {
    std::vector<float> all;
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      const std::vector<float> x =
          Input(step.slot[step.token_row[t]], step.position[t], part, count);
      all.insert(all.end(), x.begin(), x.end());
    }
    return all;
  }

  Backend* backend_;
  Shape s_;
  MemoryTensors tensors_;
  std::unique_ptr<Weight> kv_norm_, sinks_, bias_, norm_, key_bias_, key_norm_;
  std::vector<float> inv_freq_;
  CacheLayout layout_;
  std::unique_ptr<HostRows> rows_;
};

using Doubles = std::vector<double>;

// What a token of a sequence sees and returns, from the formulas.
class Definition {
 public:
  Definition(const Shape& shape, const std::vector<float>& inv_freq, int sequence, int length)
      : s_(shape), inv_freq_(inv_freq), sequence_(sequence) {
    for (int w = 0; (w + 1) * s_.ratio <= length; ++w) {
      entries_.push_back(Entry(w, s_.dim, kEntryKv, kEntryGate, Harness::kBias, Harness::kNorm));
      if (s_.index_heads > 0) {
        keys_.push_back(
            Entry(w, s_.index_dim, kKeyKv, kKeyGate, Harness::kKeyBias, Harness::kKeyNorm));
      }
    }
    for (int p = 0; p < length; ++p) {
      Doubles row = Normed(Read(p, kKv, s_.dim), Harness::Values(Harness::kKvNorm, s_.dim));
      Rotate(p, 1.0, row.data() + s_.dim - s_.rope_dim);
      window_.push_back(std::move(row));
    }
  }

  Doubles Output(int position) const {
    std::vector<const Doubles*> rows;
    for (const int entry : Chosen(position)) rows.push_back(&entries_[static_cast<size_t>(entry)]);
    for (int p = std::max(0, position + 1 - s_.window); p <= position; ++p) {
      rows.push_back(&window_[static_cast<size_t>(p)]);
    }
    const Doubles q = Read(position, kQ, s_.heads * s_.dim);
    const std::vector<float> sinks = Harness::Values(Harness::kSinks, s_.heads);
    Doubles out;
    for (int head = 0; head < s_.heads; ++head) {
      Doubles query(q.begin() + head * s_.dim, q.begin() + (head + 1) * s_.dim);
      query = Normed(query, std::vector<float>(query.size(), 1.0F));
      Rotate(position, 1.0, query.data() + s_.dim - s_.rope_dim);
      double sum = std::exp(double{sinks[static_cast<size_t>(head)]});
      Doubles mixed(static_cast<size_t>(s_.dim), 0.0);
      for (const Doubles* row : rows) {
        double score = 0.0;
        for (size_t i = 0; i < query.size(); ++i) score += query[i] * (*row)[i];
        const double weight = std::exp(0.4 * score);
        sum += weight;
        for (size_t i = 0; i < mixed.size(); ++i) mixed[i] += weight * (*row)[i];
      }
      for (double& x : mixed) x /= sum;
      Rotate(position, -1.0, mixed.data() + s_.dim - s_.rope_dim);
      out.insert(out.end(), mixed.begin(), mixed.end());
    }
    return out;
  }

 private:
  Doubles Read(int position, Part part, int count) const {
    const std::vector<float> x = Input(sequence_, position, part, count);
    return {x.begin(), x.end()};
  }
  static Doubles Normed(Doubles x, const std::vector<float>& weight) {
    double sum = 0.0;
    for (const double v : x) sum += v * v;
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * double{weight[i]};
    return x;
  }
  void Rotate(int position, double sign, double* x) const {
    for (size_t i = 0; i < inv_freq_.size(); ++i) {
      const double angle = static_cast<float>(position) * inv_freq_[i];
      const double c = std::cos(angle);
      const double s = sign * std::sin(angle);
      const double a = x[2 * i];
      const double b = x[2 * i + 1];
      x[2 * i] = a * c - b * s;
      x[2 * i + 1] = a * s + b * c;
    }
  }
  Doubles Entry(int window, int dim, Part kv_part, Part gate_part, Harness::Vector bias_of,
                Harness::Vector norm_of) const {
    const int width = s_.width(dim);
    const std::vector<float> bias = Harness::Values(bias_of, s_.ratio * width);
    const bool before = s_.reach == Reach::kWindowBefore;
    Doubles sum(static_cast<size_t>(dim), 0.0);
    Doubles value = sum;
    for (int w = before ? std::max(0, window - 1) : window; w <= window; ++w) {
      const int channel = before && w == window ? dim : 0;
      for (int i = 0; i < s_.ratio; ++i) {
        const Doubles kv = Read(w * s_.ratio + i, kv_part, width);
        const Doubles gate = Read(w * s_.ratio + i, gate_part, width);
        for (int c = 0; c < dim; ++c) {
          const auto at = static_cast<size_t>(channel + c);
          const double weight =
              std::exp(gate[at] + double{bias[static_cast<size_t>(i * width) + at]});
          sum[static_cast<size_t>(c)] += weight;
          value[static_cast<size_t>(c)] += weight * kv[at];
        }
      }
    }
    for (size_t c = 0; c < value.size(); ++c) value[c] /= sum[c];
    value = Normed(value, Harness::Values(norm_of, dim));
    Rotate(window * s_.ratio, 1.0, value.data() + dim - s_.rope_dim);
    return value;
  }
  std::vector<int> Chosen(int position) const {
    const int visible = (position + 1) / s_.ratio;
    std::vector<int> all;
    for (int e = 0; e < visible; ++e) all.push_back(e);
    if (s_.index_heads == 0 || visible <= s_.top_k) return all;
    const Doubles q = Read(position, kIndexQ, s_.index_heads * s_.index_dim);
    const Doubles weight = Read(position, kIndexWeight, s_.index_heads);
    Doubles scores;
    for (const int e : all) {
      double score = 0.0;
      for (int head = 0; head < s_.index_heads; ++head) {
        Doubles query(q.begin() + head * s_.index_dim, q.begin() + (head + 1) * s_.index_dim);
        Rotate(position, 1.0, query.data() + s_.index_dim - s_.rope_dim);
        double dot = 0.0;
        for (size_t i = 0; i < query.size(); ++i)
          dot += query[i] * keys_[static_cast<size_t>(e)][i];
        score += weight[static_cast<size_t>(head)] * std::max(0.0, dot);
      }
      scores.push_back(score);
    }
    std::stable_sort(all.begin(), all.end(), [&](int a, int b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    all.resize(static_cast<size_t>(s_.top_k));
    return all;
  }

  const Shape& s_;
  const std::vector<float>& inv_freq_;
  int sequence_;
  std::vector<Doubles> entries_, keys_, window_;
};

class CompressedOpsTest : public OpModeTest {
 protected:
  // The last `checked` tokens of each sequence.
  void ExpectDefinition(const Shape& shape, int checked) {
    const auto backend = MakeBackend(GetParam(), 2);
    Harness harness(backend.get(), shape);
    const Sequences got = harness.RunAll({});
    const double tolerance = Float32() ? 2e-5 : 6e-3;
    const int cols = shape.heads * shape.dim;
    for (size_t s = 0; s < shape.lengths.size(); ++s) {
      const int length = shape.lengths[s];
      ASSERT_EQ(got[s].size(), static_cast<size_t>(length * cols));
      const Definition definition(shape, harness.inv_freq(), static_cast<int>(s), length);
      for (int p = std::max(0, length - checked); p < length; ++p) {
        const Doubles want = definition.Output(p);
        double worst = 0.0;
        for (int i = 0; i < cols; ++i) {
          const double value = got[s][static_cast<size_t>(p * cols + i)];
          const double off = std::abs(value - want[static_cast<size_t>(i)]);
          if (!(off <= worst)) worst = off;  // NaN too
        }
        EXPECT_LE(worst, tolerance) << "dim " << shape.dim << ", position " << p;
      }
    }
  }
};

TEST_P(CompressedOpsTest, IsTheDefinition) {
  for (const Shape& shape : Shapes()) ExpectDefinition(shape, 1000);
}

TEST_P(CompressedOpsTest, IsTheDefinitionAtReleasedWidths) {
  if (Scalar()) GTEST_SKIP() << "slow";
  for (const Shape& shape : ReleasedShapes()) ExpectDefinition(shape, 2);
}

TEST_P(CompressedOpsTest, TokensDoNotDependOnChunksOrCompany) {
  const auto one = MakeBackend(GetParam(), 1);
  for (const Shape& shape : Shapes()) {
    const Sequences whole = Harness(one.get(), shape).RunAll({.together = 1});
    const auto expect_same = [&](const Sequences& got, const char* what) {
      for (size_t s = 0; s < whole.size(); ++s) {
        ASSERT_EQ(whole[s].size(), got[s].size());
        EXPECT_EQ(memcmp(whole[s].data(), got[s].data(), got[s].size() * sizeof(float)), 0)
            << what << ", dim " << shape.dim << ", " << shape.lengths[s] << " tokens";
      }
    };
    for (const NamedCut& other : OtherCuts(kRollback)) {
      const auto backend = MakeBackend(GetParam(), other.threads);
      expect_same(Harness(backend.get(), shape).RunAll(other.cut), other.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CompressedOpsTest, testing::ValuesIn(VectorModes()), ModeName);

}  // namespace
}  // namespace deepinfer
