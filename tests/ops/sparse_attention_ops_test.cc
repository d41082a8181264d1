// Window, compressed entries, index and draft attention of backend/sparse_ops.h as one layer, on
// every ISA: the definition in double precision over the rows as stored, at the widths of
// DeepSeek-V4.1 and at tiny odd ones; and tokens that come out alike, to the bit, however their
// sequence was cut into steps, whoever was beside it, and after drafts were taken back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "backend/sparse_ops.h"
#include "tensor/fake_quant.h"
#include "tests/harness/host_rows.h"
#include "tests/harness/memory_tensors.h"
#include "tests/ops/op_modes.h"

namespace deepinfer {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr int kRollback = 6;
constexpr float kEps = 1e-6F;
constexpr int kBlock = 3;  // of drafts

struct Shape {
  int heads, dim, rope, window, ratio;
  int index_heads, index_dim, top_k, block_size, candidate_blocks;
  std::vector<int> lengths;
  int attended = 1 << 30;  // last tokens of a sequence that attend; those before store alone
};

std::vector<Shape> TinyShapes() {
  return {
      {3, 32, 8, 5, 2, 2, 32, 3, 2, 2, {1, 9, 40}},
      {2, 64, 64, 8, 1, 3, 64, 4, 3, 3, {1, 33, 20}},
      // More heads than an item takes, a window of several tiles, more entries than a batch.
      {21, 96, 12, 70, 2, 5, 96, 33, 4, 20, {150, 2}},
  };
}

// The released widths: 512 of many entries, and 2048 blocks of 8 out of more.
Shape ReleasedPairs() { return {64, 512, 64, 128, 2, 32, 128, 512, 8, 2048, {1500}, 2}; }
Shape ReleasedMany() { return {64, 512, 64, 128, 1, 32, 128, 512, 8, 2048, {17000}, 2}; }

enum Part { kQ, kKv, kPoolK, kPoolGate, kKey, kIndexQ, kIndexWeight, kLimitQ, kDraftQ, kDraftKv };
Floats Input(int sequence, int position, Part part, int count) {
  Floats x = RandomFloats(
      static_cast<uint64_t>(sequence) * 10000000 + static_cast<uint64_t>(position * 16 + part),
      count);
  for (float& value : x) value *= 2.0F;
  return x;
}

enum Vector { kKvNorm = 1, kSinks, kPoolNorm, kKeyNorm };
Floats Values(Vector which, int count) {
  Floats x = RandomFloats(static_cast<uint64_t>(which), count);
  for (float& value : x) value = 1.0F + 0.5F * value;
  return x;
}

// What a token that attends leaves behind.
struct Token {
  Floats out;
  std::vector<int32_t> built, limited, candidates;
  Floats index_q, limit_q;  // as the stages left them

  bool operator==(const Token& other) const {
    return built == other.built && limited == other.limited && candidates == other.candidates &&
           out.size() == other.out.size() &&
           memcmp(out.data(), other.out.data(), out.size() * sizeof(float)) == 0;
  }
};
using Tokens = std::map<int, Token>;  // by position

class Harness {
 public:
  Harness(Backend* backend, const Shape& shape) : backend_(backend), s_(shape) {
    for (int i = 0; i < shape.rope / 2; ++i) {
      inv_freq_.push_back(
          std::pow(1000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(shape.rope)));
    }
    kv_norm_ = Bind(kKvNorm, s_.dim);
    sinks_ = Bind(kSinks, s_.heads);
    pool_norm_ = Bind(kPoolNorm, s_.dim);
    key_norm_ = Bind(kKeyNorm, s_.index_dim);
    layout_.rollback_max = kRollback;
    layout_.history.push_back({"entries", s_.ratio, 2, MainEntryBytes(s_.dim)});
    layout_.history.push_back({"keys", s_.ratio, 2, IndexKeyBytes(s_.index_dim)});
    layout_.state.push_back({"tails", 2, 1 + kRollback, int64_t{8} * s_.dim});
    layout_.state.push_back({"windows", 2, s_.window + kRollback, WindowRowBytes(s_.dim)});
    const int longest = *std::max_element(s_.lengths.begin(), s_.lengths.end());
    rows_ = std::make_unique<HostRows>(backend, layout_, static_cast<int>(s_.lengths.size()),
                                       longest + 16);
    tokens_.resize(s_.lengths.size());
    window_rows_.resize(s_.lengths.size());
  }

  // Every sequence from its start to its end.
  std::vector<Tokens> RunAll(const StepCut& cut) {
    RunInSteps(s_.lengths, cut, [&](const std::vector<HostRows::Query>& queries) {
      Step(queries, cut.dead_per_row);
    });
    return tokens_;
  }

  const Tokens& tokens(int sequence) const { return tokens_[static_cast<size_t>(sequence)]; }

  // Runs [start, length) of sequence 0 and lets it attend.
  void RunTail(int start) {
    const int length = s_.lengths[0];
    Step({{.sequence = 0,
           .start = start,
           .tokens = std::vector<int32_t>(static_cast<size_t>(length - start), 1)}},
         0);
  }

  void Step(const std::vector<HostRows::Query>& queries, int dead_per_row) {
    const StepInput step = rows_->StepWithDeadTokens(queries, dead_per_row);
    SparseOps* ops = backend_->sparse_ops();
    const auto tokens = static_cast<size_t>(step.shape.num_tokens);
    WriteEntries(step);
    const WindowSpec spec = Window();
    Floats kv = All(step, kKv, s_.dim);
    std::vector<std::byte> encoded(tokens * static_cast<size_t>(WindowRowBytes(s_.dim)));
    bool attends = false;
    for (const HostRows::Query& query : queries) {
      const int length = s_.lengths[static_cast<size_t>(query.sequence)];
      attends |= query.start + static_cast<int>(query.tokens.size()) > length - s_.attended;
    }
    WindowArgs args{.kv = kv.data(), .rows = encoded.data()};
    if (!attends) {
      ops->StoreWindow(step, spec, args);
      Remember(step, encoded);
      return;
    }
    Chosen built, limited;
    Choose(step, CandidateUse::kBuild, kIndexQ, &built);
    limited.candidate = built.candidate;
    limited.candidate_count = built.candidate_count;
    Choose(step, CandidateUse::kLimit, kLimitQ, &limited);
    Floats q = All(step, kQ, s_.heads * s_.dim);
    Floats out(q.size(), std::nanf(""));
    args.q = q.data();
    args.selected = limited.selected.data();
    args.selected_count = limited.count.data();
    args.top_k = s_.top_k;
    args.out = out.data();
    ops->EncodeWindow(step, spec, args);
    ops->WindowAttention(step, spec, args);
    Remember(step, encoded);
    const int cols = s_.heads * s_.dim, width = s_.index_heads * s_.index_dim;
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      if (step.kind[t] == TokenKind::kDead) {
        for (const float x : Cut(out, t, cols, cols)) EXPECT_EQ(x, 0.0F) << "dead token";
        continue;
      }
      const auto at = static_cast<size_t>(t);
      tokens_[static_cast<size_t>(step.slot[step.token_row[t]])][step.position[t]] = {
          Cut(out, t, cols, cols),
          Cut(built.selected, t, s_.top_k, built.count[at]),
          Cut(limited.selected, t, s_.top_k, limited.count[at]),
          Cut(built.candidate, t, s_.candidate_blocks, built.candidate_count[at]),
          Cut(built.q, t, width, width),
          Cut(limited.q, t, width, width)};
    }
  }

  // Tokens from `start` to the end of sequence 0 that see nothing before them: window alone, and
  // the entry selected last. Queries of the index are rotated.
  void RunEnd(int start) {
    const int count = s_.lengths[0] - start;
    const StepInput step =
        rows_->Step({{{.sequence = 0,
                       .start = start,
                       .tokens = std::vector<int32_t>(static_cast<size_t>(count), 1)}}});
    WriteEntries(step);
    Chosen limited;
    limited.candidate.assign(static_cast<size_t>(count * s_.candidate_blocks), 0);
    limited.candidate_count.assign(static_cast<size_t>(count), 1);
    for (int t = 0; t < count; ++t) {
      const int last = std::max((start + t + 1) / s_.ratio - 1, start / s_.ratio);
      limited.candidate[static_cast<size_t>(t * s_.candidate_blocks)] = last / s_.block_size;
    }
    Choose(step, CandidateUse::kLimit, kLimitQ, &limited);
    Floats q = All(step, kQ, s_.heads * s_.dim), out(q.size());
    const Floats kv = All(step, kKv, s_.dim);
    std::vector<std::byte> encoded(static_cast<size_t>(count * WindowRowBytes(s_.dim)));
    const std::vector<int32_t> none(static_cast<size_t>(count), 0);
    const std::vector<int32_t> begin = {start};
    const WindowArgs args{.q = q.data(),
                          .kv = kv.data(),
                          .rows = encoded.data(),
                          .begin = begin.data(),
                          .selected = none.data(),
                          .selected_count = none.data(),
                          .top_k = 1,
                          .out = out.data()};
    backend_->sparse_ops()->EncodeWindow(step, Window(), args);
    backend_->sparse_ops()->WindowAttention(step, Window(), args);
    Remember(step, encoded);
    const int cols = s_.heads * s_.dim, width = s_.index_heads * s_.index_dim;
    for (int t = 0; t < count; ++t) {
      tokens_[0][start + t] = {.out = Cut(out, t, cols, cols),
                               .limit_q = Cut(limited.q, t, width, width)};
    }
  }

  // Draft blocks of the given sequences after all of their tokens.
  std::vector<Floats> Draft(const std::vector<int>& sequences) {
    std::vector<int32_t> position, slot;
    Floats q, kv;
    const auto append = [](const Floats& from, Floats* to) {
      to->insert(to->end(), from.begin(), from.end());
    };
    for (const int s : sequences) {
      slot.push_back(s);
      position.push_back(s_.lengths[static_cast<size_t>(s)]);
      for (int i = 0; i < kBlock; ++i) {
        append(Input(s, position.back() + i, kDraftQ, s_.heads * s_.dim), &q);
        append(Input(s, position.back() + i, kDraftKv, s_.dim), &kv);
      }
    }
    const auto rows = static_cast<int>(sequences.size());
    draft_rows_.assign(
        static_cast<size_t>(rows * kBlock) * static_cast<size_t>(WindowRowBytes(s_.dim)),
        std::byte{0});
    Floats out(q.size(), std::nanf(""));
    const StepInput step = rows_->Step({});
    backend_->sparse_ops()->DraftWindowAttention(Window(), {.rows = rows,
                                                            .block = kBlock,
                                                            .position = position.data(),
                                                            .slot = slot.data(),
                                                            .cache_slots = step.cache_slots,
                                                            .layout = step.layout,
                                                            .q = q.data(),
                                                            .kv = kv.data(),
                                                            .encoded = draft_rows_.data(),
                                                            .out = out.data()});
    std::vector<Floats> split;
    const int64_t width = int64_t{kBlock} * s_.heads * s_.dim;
    for (int row = 0; row < rows; ++row) {
      split.emplace_back(out.begin() + row * width, out.begin() + (row + 1) * width);
    }
    return split;
  }

  // Rows as they are stored.
  Floats WindowRow(int sequence, int position) const {
    Floats row(static_cast<size_t>(s_.dim));
    DecodeWindowRow(window_rows_[static_cast<size_t>(sequence)].at(position).data(), s_.dim,
                    row.data());
    return row;
  }
  Floats DraftRow(int index) const {
    Floats row(static_cast<size_t>(s_.dim));
    DecodeWindowRow(draft_rows_.data() + index * WindowRowBytes(s_.dim), s_.dim, row.data());
    return row;
  }
  Floats Entry(int sequence, int entry) {
    Floats row(static_cast<size_t>(s_.dim));
    DecodeMainEntry(History(sequence, entry, 0), s_.dim, row.data());
    return row;
  }
  Floats Key(int sequence, int entry) {
    Floats row(static_cast<size_t>(s_.index_dim));
    DecodeIndexKey(History(sequence, entry, 1), s_.index_dim, row.data());
    return row;
  }
  const Floats& inv_freq() const { return inv_freq_; }
  const Shape& shape() const { return s_; }

 private:
  std::unique_ptr<Weight> Bind(Vector which, int count) {
    const TensorView& view = tensors_.Add("vector", DType::kF32, {count}, Values(which, count));
    return std::move(backend_->Bind(tensors_, view, WeightRole::kVector)).value();
  }
  struct Chosen {
    Floats q;
    std::vector<int32_t> selected, count, candidate, candidate_count;
  };
  // Candidates are filled if they are built.
  void Choose(const StepInput& step, CandidateUse use, Part part, Chosen* out) {
    const auto tokens = static_cast<size_t>(step.shape.num_tokens);
    out->q = All(step, part, s_.index_heads * s_.index_dim);
    const Floats weight = All(step, kIndexWeight, s_.index_heads);
    out->selected.assign(tokens * static_cast<size_t>(s_.top_k), -7);
    out->count.assign(tokens, -7);
    if (use == CandidateUse::kBuild) {
      out->candidate.assign(tokens * static_cast<size_t>(s_.candidate_blocks), -7);
      out->candidate_count.assign(tokens, -7);
    }
    backend_->sparse_ops()->IndexSelect(step,
                                        {.heads = s_.index_heads,
                                         .dim = s_.index_dim,
                                         .ratio = s_.ratio,
                                         .top_k = s_.top_k,
                                         .rope = {inv_freq_.data(), s_.rope},
                                         .keys = {1, 1},
                                         .candidates = use,
                                         .block_size = s_.block_size,
                                         .candidate_blocks = s_.candidate_blocks},
                                        {.q = out->q.data(),
                                         .weight = weight.data(),
                                         .selected = out->selected.data(),
                                         .selected_count = out->count.data(),
                                         .candidate = out->candidate.data(),
                                         .candidate_count = out->candidate_count.data()});
  }
  template <typename T>
  static std::vector<T> Cut(const std::vector<T>& all, int token, int width, int count) {
    const auto begin = all.begin() + int64_t{token} * width;
    return std::vector<T>(begin, begin + count);
  }
  WindowSpec Window() const {
    return {.heads = s_.heads,
            .dim = s_.dim,
            .window = s_.window,
            .rope = {inv_freq_.data(), s_.rope},
            .scale = 0.05F,
            .kv_norm = kv_norm_.get(),
            .norm_eps = kEps,
            .sink = sinks_.get(),
            .ring = {1, 1},
            .entries = {0, 1},
            .ratio = s_.ratio};
  }
  void WriteEntries(const StepInput& step) {
    const Floats k = All(step, kPoolK, s_.dim), gate = All(step, kPoolGate, s_.dim);
    Floats latent(k.size()), key = All(step, kKey, s_.index_dim);
    SparseOps* ops = backend_->sparse_ops();
    ops->Compress(step,
                  {.dim = s_.dim,
                   .ratio = s_.ratio,
                   .tail_group = 0,
                   .tail_layer = 1,
                   .norm = pool_norm_.get(),
                   .norm_eps = kEps},
                  {.k = k.data(), .gate = gate.data(), .latent = latent.data()});
    ops->WriteEntries(step,
                      {.dim = s_.dim,
                       .key_dim = s_.index_dim,
                       .ratio = s_.ratio,
                       .rope = {inv_freq_.data(), s_.rope},
                       .key_norm = key_norm_.get(),
                       .norm_eps = kEps,
                       .entries = {0, 1},
                       .keys = {1, 1}},
                      {.latent = latent.data(), .key = key.data()});
  }
  void Remember(const StepInput& step, const std::vector<std::byte>& encoded) {
    const int64_t bytes = WindowRowBytes(s_.dim);
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      if (step.kind[t] == TokenKind::kDead) continue;
      const auto s = static_cast<size_t>(step.slot[step.token_row[t]]);
      if (step.position[t] < s_.lengths[s] - s_.attended - s_.window) continue;
      window_rows_[s][step.position[t]] =
          std::vector<std::byte>(encoded.begin() + t * bytes, encoded.begin() + (t + 1) * bytes);
    }
  }
  const std::byte* History(int sequence, int entry, size_t group) {
    const StepInput step = rows_->Step({});
    const HistoryGroup& rows = layout_.history[group];
    const int per_block = layout_.block_tokens / s_.ratio;
    const int32_t block = rows_->table(sequence)[static_cast<size_t>(entry / per_block)];
    return step.cache_blocks + block * layout_.block_bytes() + layout_.history_offset(group, 1) +
           entry % per_block * rows.row_bytes;
  }
  static Floats All(const StepInput& step, Part part, int count) {
    Floats all;
    for (int t = 0; t < step.shape.num_tokens; ++t) {
      const Floats x = Input(step.slot[step.token_row[t]], step.position[t], part, count);
      all.insert(all.end(), x.begin(), x.end());
    }
    return all;
  }

  Backend* backend_;
  Shape s_;
  MemoryTensors tensors_;
  std::unique_ptr<Weight> kv_norm_, sinks_, pool_norm_, key_norm_;
  Floats inv_freq_;
  CacheLayout layout_;
  std::unique_ptr<HostRows> rows_;
  std::vector<Tokens> tokens_;
  std::vector<std::map<int, std::vector<std::byte>>> window_rows_;
  std::vector<std::byte> draft_rows_;
};

// The formulas over stored rows.
class Definition {
 public:
  // `tolerance`: of attention.
  Definition(Harness* harness, double tolerance)
      : h_(*harness), s_(harness->shape()), tolerance_(tolerance) {}

  // `first`: the sequence's first position that was run.
  void ExpectStoredRows(int sequence, int first) {
    const int length = s_.lengths[static_cast<size_t>(sequence)];
    for (int p = std::max(first, length - 40); p < length; ++p) {
      Doubles row = Normed(Wide(Input(sequence, p, kKv, s_.dim)), Values(kKvNorm, s_.dim));
      Rotate(p, 1.0, s_.dim, row.data());
      ExpectRounded(h_.WindowRow(sequence, p), row, 0.04);
    }
    const int entry = first / s_.ratio;
    for (int e = entry; e < std::min(entry + 40, length / s_.ratio); ++e) {
      Doubles row = Normed(Latent(sequence, e), Values(kPoolNorm, s_.dim));
      Rotate(e * s_.ratio, 1.0, s_.dim, row.data());
      ExpectRounded(h_.Entry(sequence, e), row, 0.16);
      const int last = (e + 1) * s_.ratio - 1;
      row = Normed(Wide(Input(sequence, last, kKey, s_.index_dim)), Values(kKeyNorm, s_.index_dim));
      Rotate(e * s_.ratio, 1.0, s_.index_dim, row.data());
      ExpectRounded(h_.Key(sequence, e), row, 0.3);
    }
  }

  void ExpectToken(int sequence, int position, const Token& token) {
    ExpectQuery(sequence, position, kIndexQ, token.index_q);
    ExpectQuery(sequence, position, kLimitQ, token.limit_q);
    const int visible = (position + 1) / s_.ratio;
    const Doubles scores = Scores(sequence, position, token.index_q, visible);
    std::vector<int32_t> all;
    for (int e = 0; e < visible; ++e) all.push_back(e);
    ExpectBest(token.built, all, scores, s_.top_k);
    Doubles blocks;
    for (int e = 0; e < visible; ++e) {
      if (e % s_.block_size == 0) blocks.push_back(scores[static_cast<size_t>(e)]);
      blocks.back() = std::max(blocks.back(), scores[static_cast<size_t>(e)]);
    }
    if (!blocks.empty()) blocks.back() = 1e30;
    std::vector<int32_t> numbers;
    for (size_t b = 0; b < blocks.size(); ++b) numbers.push_back(static_cast<int32_t>(b));
    ExpectBest(token.candidates, numbers, blocks, s_.candidate_blocks);
    std::vector<int32_t> allowed;
    for (const int32_t b : token.candidates) {
      for (int e = b * s_.block_size; e < std::min(visible, (b + 1) * s_.block_size); ++e) {
        allowed.push_back(e);
      }
    }
    ExpectBest(token.limited, allowed, Scores(sequence, position, token.limit_q, visible),
               s_.top_k);
    std::vector<Floats> rows;
    for (int p = std::max(0, position + 1 - s_.window); p <= position; ++p) {
      rows.push_back(h_.WindowRow(sequence, p));
    }
    for (const int32_t e : token.limited) rows.push_back(h_.Entry(sequence, e));
    ExpectAttention(sequence, position, kQ, rows, token.out.data());
  }

  // A token of RunEnd(start).
  void ExpectEnd(int start, int position, const Token& token) {
    ExpectQuery(0, position, kLimitQ, token.limit_q);
    std::vector<Floats> rows;
    for (int p = std::max(start, position + 1 - s_.window); p <= position; ++p) {
      rows.push_back(h_.WindowRow(0, p));
    }
    ExpectAttention(0, position, kQ, rows, token.out.data());
  }

  void ExpectDraft(int sequence, int index, const Floats& out) {
    const int length = s_.lengths[static_cast<size_t>(sequence)];
    std::vector<Floats> rows;
    for (int p = std::max(0, length - s_.window); p < length; ++p) {
      rows.push_back(h_.WindowRow(sequence, p));
    }
    for (int i = 0; i < kBlock; ++i) rows.push_back(h_.DraftRow(index * kBlock + i));
    for (int i = 0; i < kBlock; ++i) {
      ExpectAttention(sequence, length + i, kDraftQ, rows, out.data() + i * s_.heads * s_.dim);
    }
  }

 private:
  static Doubles Wide(const Floats& x) { return Doubles(x.begin(), x.end()); }
  static Doubles Normed(Doubles x, const Floats& weight) {
    double square = 0.0;
    for (const double value : x) square += value * value;
    const double scale = 1.0 / std::sqrt(square / static_cast<double>(x.size()) + double{kEps});
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * weight[i];
    return x;
  }
  // The last `rope` of `dim` channels.
  void Rotate(int position, double direction, int dim, double* x) const {
    x += dim - s_.rope;
    for (int i = 0; i < s_.rope / 2; ++i) {
      // Angles are float32, which shows far from the start.
      const double angle = static_cast<float>(position) * h_.inv_freq()[static_cast<size_t>(i)];
      const double c = std::cos(angle), s = direction * std::sin(angle);
      const double a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * c - b * s;
      x[2 * i + 1] = b * c + a * s;
    }
  }
  Doubles Latent(int sequence, int entry) const {
    Doubles sum(static_cast<size_t>(s_.dim), 0.0), latent = sum;
    for (int p = entry * s_.ratio; p < (entry + 1) * s_.ratio; ++p) {
      const Floats k = Input(sequence, p, kPoolK, s_.dim);
      const Floats gate = Input(sequence, p, kPoolGate, s_.dim);
      for (size_t i = 0; i < latent.size(); ++i) {
        const double weight = std::exp(double{gate[i]});
        sum[i] += weight;
        latent[i] += weight * k[i];
      }
    }
    for (size_t i = 0; i < latent.size(); ++i) latent[i] /= sum[i];
    return latent;
  }
  // `share`: of the root mean square, what rounding may leave on average.
  static void ExpectRounded(const Floats& got, const Doubles& want, double share) {
    double off = 0.0, square = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      off += (got[i] - want[i]) * (got[i] - want[i]);
      square += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(off), std::sqrt(square) * share) << want.size();
    EXPECT_GT(off, 0.0) << "not rounded";
  }
  void ExpectQuery(int sequence, int position, Part part, const Floats& got) const {
    const Floats q = Input(sequence, position, part, s_.index_heads * s_.index_dim);
    for (int h = 0; h < s_.index_heads; ++h) {
      Doubles want(q.begin() + h * s_.index_dim, q.begin() + (h + 1) * s_.index_dim);
      Rotate(position, 1.0, s_.index_dim, want.data());
      Floats own(got.begin() + h * s_.index_dim, got.begin() + (h + 1) * s_.index_dim);
      ExpectRounded(own, want, 0.3);
      // A value of the format stays itself.
      Floats again(own.size());
      FakeQuantFp4E8m0(own.data(), static_cast<int64_t>(own.size()), kIndexKeyBlock, again.data());
      EXPECT_EQ(own, again);
    }
  }
  Doubles Scores(int sequence, int position, const Floats& q, int visible) const {
    const Floats weight = Input(sequence, position, kIndexWeight, s_.index_heads);
    Doubles scores;
    for (int e = 0; e < visible; ++e) {
      const Floats key = h_.Key(sequence, e);
      double score = 0.0;
      for (int h = 0; h < s_.index_heads; ++h) {
        double dot = 0.0;
        for (int i = 0; i < s_.index_dim; ++i) {
          dot += double{q[static_cast<size_t>(h * s_.index_dim + i)]} * key[static_cast<size_t>(i)];
        }
        score += weight[static_cast<size_t>(h)] * std::max(0.0, dot);
      }
      scores.push_back(score / std::sqrt(double{1.0} * s_.index_heads * s_.index_dim));
    }
    return scores;
  }
  // `chosen` ascending: the best `count` of `from`, but for ties within rounding.
  static void ExpectBest(const std::vector<int32_t>& chosen, const std::vector<int32_t>& from,
                         const Doubles& scores, int count) {
    ASSERT_EQ(chosen.size(), std::min(from.size(), static_cast<size_t>(count)));
    double worst = 1e300, best_left = -1e300, size = 0.0;
    size_t next = 0;
    for (const int32_t e : from) {
      const double score = scores[static_cast<size_t>(e)];
      if (score < 1e29) size = std::max(size, std::fabs(score));
      if (next < chosen.size() && chosen[next] == e) {
        worst = std::min(worst, score);
        ++next;
      } else {
        best_left = std::max(best_left, score);
      }
    }
    EXPECT_EQ(next, chosen.size()) << "not ascending, or not of the list";
    EXPECT_GE(worst, best_left - 1e-5 * size);
  }
  void ExpectAttention(int sequence, int position, Part part, const std::vector<Floats>& rows,
                       const float* got) const {
    const Floats all = Input(sequence, position, part, s_.heads * s_.dim);
    const Floats sinks = Values(kSinks, s_.heads);
    double worst = 0.0;
    for (int head = 0; head < s_.heads; ++head) {
      Doubles q(all.begin() + head * s_.dim, all.begin() + (head + 1) * s_.dim);
      Rotate(position, 1.0, s_.dim, q.data());
      double sum = std::exp(double{sinks[static_cast<size_t>(head)]});
      Doubles mixed(q.size(), 0.0);
      for (const Floats& row : rows) {
        double dot = 0.0;
        for (size_t i = 0; i < q.size(); ++i) dot += q[i] * row[i];
        const double weight = std::exp(dot * double{0.05F});
        sum += weight;
        for (size_t i = 0; i < q.size(); ++i) mixed[i] += weight * row[i];
      }
      for (double& x : mixed) x /= sum;
      Rotate(position, -1.0, s_.dim, mixed.data());
      for (int i = 0; i < s_.dim; ++i) {
        const double off = std::fabs(got[head * s_.dim + i] - mixed[static_cast<size_t>(i)]);
        if (!(off <= worst)) worst = off;
      }
    }
    EXPECT_LE(worst, tolerance_) << "position " << position << ", dim " << s_.dim;
  }

  Harness& h_;
  const Shape& s_;
  const double tolerance_;
};

class SparseAttentionOpsTest : public OpModeTest {
 protected:
  static double Tolerance() { return Rounded() ? 1e-2 : 3e-5; }
};

TEST_P(SparseAttentionOpsTest, IsTheDefinition) {
  const auto backend = MakeBackend(GetParam(), 2);
  for (const Shape& shape : TinyShapes()) {
    Harness harness(backend.get(), shape);
    const std::vector<Tokens> tokens = harness.RunAll({});
    Definition definition(&harness, Tolerance());
    std::vector<int> sequences;
    for (size_t s = 0; s < tokens.size(); ++s) {
      const auto sequence = static_cast<int>(s);
      sequences.push_back(sequence);
      ASSERT_EQ(tokens[s].size(), static_cast<size_t>(shape.lengths[s]));
      definition.ExpectStoredRows(sequence, 0);
      for (const auto& [position, token] : tokens[s]) {
        definition.ExpectToken(sequence, position, token);
      }
    }
    const std::vector<Floats> drafts = harness.Draft(sequences);
    for (const int s : sequences) {
      definition.ExpectDraft(s, s, drafts[static_cast<size_t>(s)]);
    }
    for (const int s : sequences) {
      EXPECT_EQ(harness.Draft({s})[0], drafts[static_cast<size_t>(s)]) << "alone";
    }
  }
}

TEST_P(SparseAttentionOpsTest, IsTheDefinitionAtReleasedWidths) {
  if (Scalar()) GTEST_SKIP() << "slow";
  const auto backend = MakeBackend(GetParam(), 2);
  for (const Shape& shape : {ReleasedPairs(), ReleasedMany()}) {
    Harness harness(backend.get(), shape);
    const int length = shape.lengths[0];
    for (int start = 0; start < length - shape.attended;) {
      const int count = std::min(2000, length - shape.attended - start);
      harness.Step({{.sequence = 0,
                     .start = start,
                     .tokens = std::vector<int32_t>(static_cast<size_t>(count), 1)}},
                   0);
      start += count;
    }
    harness.RunTail(length - shape.attended);
    const Tokens tokens = harness.tokens(0);
    Definition definition(&harness, Tolerance());
    definition.ExpectStoredRows(0, 0);
    ASSERT_EQ(tokens.size(), static_cast<size_t>(shape.attended));
    for (const auto& [position, token] : tokens) definition.ExpectToken(0, position, token);
    harness.RunTail(length - 1);
    EXPECT_EQ(tokens.at(length - 1) == harness.tokens(0).at(length - 1), true) << "alone";
    const std::vector<Floats> drafts = harness.Draft({0});
    definition.ExpectDraft(0, 0, drafts[0]);
  }
}

// Angles are products in float32, whose cosines must be right up to the last position.
TEST_P(SparseAttentionOpsTest, AnglesHoldToTheLastPosition) {
  const auto backend = MakeBackend(GetParam(), 2);
  const Shape shape{2, 64, 64, 8, 2, 3, 64, 4, 3, 3, {1 << 20}};
  const int start = shape.lengths[0] - 12;
  Harness harness(backend.get(), shape);
  harness.RunEnd(start);
  Definition definition(&harness, Tolerance());
  definition.ExpectStoredRows(0, start);
  ASSERT_EQ(harness.tokens(0).size(), 12U);
  for (const auto& [position, token] : harness.tokens(0)) {
    definition.ExpectEnd(start, position, token);
  }
}

TEST_P(SparseAttentionOpsTest, TokensDoNotDependOnChunksOrCompany) {
  const auto one = MakeBackend(GetParam(), 1);
  for (const Shape& shape : TinyShapes()) {
    const std::vector<Tokens> whole = Harness(one.get(), shape).RunAll({.together = 1});
    const auto expect_same = [&](const std::vector<Tokens>& got, const char* what) {
      for (size_t s = 0; s < whole.size(); ++s) {
        EXPECT_EQ(whole[s] == got[s], true)
            << what << ", dim " << shape.dim << ", " << shape.lengths[s] << " tokens";
      }
    };
    for (const NamedCut& other : OtherCuts(kRollback)) {
      const auto backend = MakeBackend(GetParam(), other.threads);
      expect_same(Harness(backend.get(), shape).RunAll(other.cut), other.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SparseAttentionOpsTest, testing::ValuesIn(VectorModes()), ModeName);

}  // namespace
}  // namespace deepinfer
