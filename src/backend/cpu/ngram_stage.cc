#include "backend/cpu/ngram_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "backend/cpu/step_rows.h"
#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr int kNgramMax = kLeadTokens + 1;
constexpr int32_t kDeadId = -1;

int32_t Compressed(const NgramSpec& spec, int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= spec.token_map.size()) return kDeadId;
  return spec.token_map[static_cast<size_t>(token)];
}

int32_t IdOf(const StepInput& step, const NgramSpec& spec, int token) {
  return step.kind[token] == TokenKind::kText ? Compressed(spec, step.token[token]) : kDeadId;
}

}  // namespace

// ids[s] of the token s places back; a dead one or none makes it and all before it the pad.
void NgramStage::LookBack(const StepInput& step, const NgramSpec& spec, int token,
                          int32_t* ids) const {
  const int row = step.token_row[token];
  const int first = step.query_start[row];
  const StateView state(step, spec.state_group, 0, sizeof(int32_t));
  bool blocked = false;
  for (int s = 0; s < spec.ngram; ++s) {
    const int position = step.position[token] - s;
    int32_t id = kDeadId;
    if (position >= 0 && !blocked) {
      const int lead = first - (token - s);  // places before the row's first token
      if (lead <= 0) {
        id = IdOf(step, spec, token - s);
      } else {
        const int32_t given =
            step.lead_token == nullptr ? -1 : step.lead_token[row * kLeadTokens + lead - 1];
        if (given == -1) {
          std::memcpy(&id, state.At(step.slot[row], position), sizeof(id));
        } else {
          id = Compressed(spec, given);
        }
      }
    }
    blocked = blocked || id == kDeadId;
    ids[s] = blocked ? spec.pad : id;
  }
}

void NgramStage::Rows(const StepInput& step, const NgramSpec& spec,
                      std::span<int64_t* const> rows) {
  DI_CHECK(spec.ngram >= 2 && spec.ngram <= kNgramMax, "n-grams of {} tokens", spec.ngram);
  const int columns = (spec.ngram - 1) * spec.heads;
  context_->pool->Run(step.shape.num_tokens, [&](int t, int) {
    if (step.kind[t] == TokenKind::kDead) {
      for (int64_t* out : rows) std::fill_n(out + int64_t{t} * columns, columns, 0);
      return;
    }
    int32_t ids[kNgramMax];
    LookBack(step, spec, t, ids);
    for (size_t table = 0; table < rows.size(); ++table) {
      const NgramTable& constants = spec.tables[table];
      int64_t* out = rows[table] + int64_t{t} * columns;
      int64_t mixed = ids[0] * constants.multiplier[0];
      for (int n = 1; n < spec.ngram; ++n) {
        mixed ^= ids[n] * constants.multiplier[static_cast<size_t>(n)];
        for (int h = 0; h < spec.heads; ++h) {
          const auto c = static_cast<size_t>((n - 1) * spec.heads + h);
          out[c] = mixed % constants.prime[c] + constants.offset[c];
        }
      }
    }
  });
  // Written once everybody has looked back.
  const StateView state(step, spec.state_group, 0, sizeof(int32_t));
  for (int row = 0; row < step.shape.num_rows; ++row) {
    const int first = step.query_start[row];
    const int end = first + LiveTokens(step, row);
    if (step.lead_token != nullptr) {
      for (int i = 0; i < kLeadTokens && i < step.position[first]; ++i) {
        const int32_t given = step.lead_token[row * kLeadTokens + i];
        if (given == -1) continue;
        const int32_t id = Compressed(spec, given);
        std::memcpy(state.At(step.slot[row], step.position[first] - 1 - i), &id, sizeof(id));
      }
    }
    for (int t = std::max(first, end - state.positions()); t < end; ++t) {
      const int32_t id = IdOf(step, spec, t);
      std::memcpy(state.At(step.slot[row], step.position[t]), &id, sizeof(id));
    }
  }
}

void NgramStage::Gate(const NgramGateArgs& args) {
  const int n = args.shape.streams;
  const int64_t hidden = args.shape.hidden;
  const float* q = Cpu(*args.q_weight).vector.data();
  const float* k = Cpu(*args.k_weight).vector.data();
  const float width_scale = 1.0F / std::sqrt(static_cast<float>(hidden));
  context_->pool->Run(args.shape.rows, [&](int row, int) {
    if (args.kind[row] != TokenKind::kText) return;
    const float* keys = args.kv + row * (n + 1) * hidden;
    for (int i = 0; i < n; ++i) {
      float* x = args.x + (int64_t{row} * n + i) * hidden;
      const float* key = keys + i * hidden;
      const float count = static_cast<float>(hidden);
      const float rx =
          1.0F / std::sqrt(context_->sparse().dot(x, x, hidden) / count + args.norm_eps);
      const float rk =
          1.0F / std::sqrt(context_->sparse().dot(key, key, hidden) / count + args.norm_eps);
      const float product =
          context_->sparse().gated_dot(x, q + i * hidden, k + i * hidden, key, hidden);
      const float dot = product * (rx * rk) * width_scale;
      const float root = std::sqrt(std::max(std::fabs(dot), 1e-6F));
      const float gate = SigmoidOf(std::copysign(root, dot));
      context_->rows->add_scaled(gate, keys + n * hidden, hidden, x);
    }
  });
}

}  // namespace deepinfer::cpu
