#include "backend/cpu/compressor_stage.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "backend/cpu/step_rows.h"
#include "backend/cpu/stored_rows.h"
#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr int kSlotsMax = 512;  // tokens that one entry reads

// A token's part of an entry.
struct Slot {
  const float* kv;
  const float* gate;
  const float* bias;
};

int64_t RingBytes(const CompressorSpec& spec) {
  return int64_t{2} * spec.width() * static_cast<int64_t>(sizeof(float));
}

// Softmax over the slots of each channel.
void Mix(const Slot* slots, int count, int dim, float* out) {
  for (int c = 0; c < dim; ++c) {
    float max = slots[0].gate[c] + slots[0].bias[c];
    for (int s = 1; s < count; ++s) max = std::max(max, slots[s].gate[c] + slots[s].bias[c]);
    float sum = 0.0F;
    float value = 0.0F;
    for (int s = 0; s < count; ++s) {
      const float weight = std::exp(slots[s].gate[c] + slots[s].bias[c] - max);
      sum += weight;
      value += weight * slots[s].kv[c];
    }
    out[c] = value / sum;
  }
}

}  // namespace

void CompressorStage::WriteEntry(const StepInput& step, const CompressorSpec& spec, const float* kv,
                                 const float* gate, size_t index, float* scratch) const {
  const Entry& entry = entries_[index];
  const int start = step.query_start[entry.row];
  const int first = step.position[start];
  const StateView ring(step, spec.ring.group, spec.ring.layer, RingBytes(spec));
  const int width = spec.width();
  const float* bias = Cpu(*spec.bias).vector.data();
  std::array<Slot, kSlotsMax> slots;
  int count = 0;
  const auto add_window = [&](int window, int channel) {
    for (int i = 0; i < spec.ratio; ++i) {
      const int position = window * spec.ratio + i;
      Slot& slot = slots[static_cast<size_t>(count++)];
      if (position >= first) {
        const int64_t at = int64_t{start + position - first} * width + channel;
        slot = {kv + at, gate + at, nullptr};
      } else {
        const auto* stored =
            reinterpret_cast<const float*>(ring.At(step.slot[entry.row], position));
        slot = {stored + channel, stored + width + channel, nullptr};
      }
      slot.bias = bias + int64_t{i} * width + channel;
    }
  };
  const bool before = spec.reach == CompressorSpec::Reach::kWindowBefore;
  if (before && entry.window > 0) add_window(entry.window - 1, 0);
  add_window(entry.window, before ? spec.dim : 0);
  Mix(slots.data(), count, spec.dim, scratch);

  context_->rows->rms_norm(scratch, Cpu(*spec.norm).vector.data(), spec.dim, spec.norm_eps,
                           scratch);
  context_->rows->rope_interleaved(scratch + spec.dim - spec.rope.dim,
                                   rope_.cos(static_cast<int>(index)),
                                   rope_.sin(static_cast<int>(index)), spec.rope.dim / 2);
  RoundRow(spec.rounding, spec.dim, spec.rope.dim, scratch);
  const bool float32 = spec.float32_entries || context_->float32;
  const HistoryView rows(step, spec.entries, int64_t{EntryElements(spec.dim)} * (float32 ? 4 : 2));
  StoreRow(float32, scratch, spec.dim, EntryElements(spec.dim),
           rows.Entry(entry.row, EntryRow(entry.window, spec.ratio)));
}

// The last positions of the row, as many as the ring holds.
void CompressorStage::WriteRing(const StepInput& step, const CompressorSpec& spec, const float* kv,
                                const float* gate, int row) const {
  const StateView ring(step, spec.ring.group, spec.ring.layer, RingBytes(spec));
  const int count = LiveTokens(step, row);
  const auto width = static_cast<size_t>(spec.width());
  for (int i = std::max(0, count - ring.positions()); i < count; ++i) {
    const int token = step.query_start[row] + i;
    if (step.kind[token] == TokenKind::kDead) continue;
    auto* to = reinterpret_cast<float*>(ring.At(step.slot[row], step.position[token]));
    const size_t at = static_cast<size_t>(token) * width;
    memcpy(to, kv + at, width * sizeof(float));
    memcpy(to + width, gate + at, width * sizeof(float));
  }
}

void CompressorStage::Compress(const StepInput& step, const CompressorSpec& spec, const float* kv,
                               const float* gate) {
  DI_CHECK(2 * spec.ratio <= kSlotsMax, "windows of {} tokens", spec.ratio);
  entries_.clear();
  positions_.clear();
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int count = LiveTokens(step, row);
    if (count == 0) continue;
    const int first = step.position[step.query_start[row]];
    for (int window = first / spec.ratio; (window + 1) * spec.ratio <= first + count; ++window) {
      entries_.push_back({row, window});
      positions_.push_back(window * spec.ratio);
    }
  }
  const auto count = static_cast<int>(entries_.size());
  if (count > 0) {
    rope_.Prepare(context_->pool.get(), positions_.data(), count, spec.rope.inv_freq,
                  spec.rope.dim / 2, 1.0F);
  }
  const int64_t stride = (int64_t{spec.dim} + 15) / 16 * 16;
  float* scratch = scratch_.Reserve(stride * context_->pool->threads());
  context_->pool->Run(count, [&](int i, int thread) {
    WriteEntry(step, spec, kv, gate, static_cast<size_t>(i), scratch + thread * stride);
  });
  context_->pool->Run(step.shape.num_rows,
                      [&](int row, int) { WriteRing(step, spec, kv, gate, row); });
}

}  // namespace deepinfer::cpu
