#include "backend/cpu/moe_stage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kElementsPerChunk = 4096;
constexpr int kGroupsMax = 64;
constexpr float kLinearSoftplus = 20.0F;  // above it ln(1 + e^x) is x, as models are trained with

int RowsPerChunk(int64_t elements) {
  return static_cast<int>(std::max<int64_t>(1, kElementsPerChunk / std::max<int64_t>(elements, 1)));
}

}  // namespace

void MoeStage::Run(const MoeArgs& args) {
  if (args.rows == 0) return;
  DI_CHECK(args.top_k > 0 && args.top_k <= args.router->rows, "top {} of {} experts", args.top_k,
           args.router->rows);
  const RouterSpec& routing = args.routing;
  DI_CHECK(routing.groups >= 1 && routing.groups <= kGroupsMax &&
               args.router->rows % routing.groups == 0 && routing.group_top_k >= 1,
           "{} groups of {} experts", routing.groups, args.router->rows);
  Route(args);
  SortByExpert(args);
  RunExperts(args);
  Combine(args);
}

void MoeStage::Route(const MoeArgs& args) {
  const int64_t experts = args.router->rows;
  const Product router{.matrix = &Cpu(*args.router).matrix(),
                       .input = &Cpu(*args.input).rows,
                       .m = args.rows,
                       .out = logits_.Reserve(args.rows * experts)};
  products_->Run({&router, 1});
  choices_.resize(static_cast<size_t>(args.rows) * static_cast<size_t>(args.top_k));
  const int per_chunk = RowsPerChunk(4 * experts);
  float* biased = biased_.Reserve(experts * context_->pool->threads());
  context_->pool->Run((args.rows + per_chunk - 1) / per_chunk, [&](int chunk, int thread) {
    const int end = std::min(args.rows, (chunk + 1) * per_chunk);
    for (int row = chunk * per_chunk; row < end; ++row) {
      ChooseExperts(args, row, biased + thread * experts);
    }
  });
}

// Logits to scores, in place where they are not the logits themselves.
void MoeStage::Score(const MoeArgs& args, float* logits) const {
  const int64_t experts = args.router->rows;
  switch (args.routing.scoring) {
    case RouterScoring::kSoftmax:
      return;  // the order of the logits; weights follow the choice
    case RouterScoring::kSigmoid:
      for (int64_t e = 0; e < experts; ++e) logits[e] = 1.0F / (1.0F + std::exp(-logits[e]));
      return;
    case RouterScoring::kSqrtSoftplus:
      for (int64_t e = 0; e < experts; ++e) {
        const float x = logits[e];
        logits[e] = std::sqrt(x > kLinearSoftplus ? x : std::log1p(std::exp(x)));
      }
  }
}

// Experts outside the best groups lose their chance. NaN scores never help a group.
void MoeStage::KeepBestGroups(const MoeArgs& args, float* scores) const {
  const int groups = args.routing.groups;
  const int64_t size = args.router->rows / groups;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const auto strength = [&](int group) {
    float best = kNever, second = kNever;
    for (int64_t e = group * size; e < (group + 1) * size; ++e) {
      if (scores[e] > best) {
        second = best;
        best = scores[e];
      } else if (scores[e] > second) {
        second = scores[e];
      }
    }
    return size > 1 ? best + second : best;
  };
  float strengths[kGroupsMax];
  for (int g = 0; g < groups; ++g) strengths[g] = strength(g);
  for (int g = 0; g < groups; ++g) {
    int better = 0;
    for (int other = 0; other < groups; ++other) {
      better += strengths[other] > strengths[g] || (strengths[other] == strengths[g] && other < g);
    }
    if (better >= args.routing.group_top_k) {
      std::fill(scores + g * size, scores + (g + 1) * size, kNever);
    }
  }
}

// The largest values win, the lower expert on a tie. A NaN is never chosen before a number.
void MoeStage::TakeLargest(const float* values, int64_t experts, int top_k, Choice* choices) {
  int count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    int place = count;
    const auto before = [&](const Choice& other) {
      return values[e] > other.weight || (std::isnan(other.weight) && !std::isnan(values[e]));
    };
    while (place > 0 && before(choices[place - 1])) --place;
    if (place >= top_k) continue;
    count = std::min(count + 1, top_k);
    std::move_backward(choices + place, choices + count - 1, choices + count);
    choices[place] = {static_cast<int32_t>(e), values[e], 0};
  }
}

void MoeStage::ChooseExperts(const MoeArgs& args, int row, float* biased) {
  const int64_t experts = args.router->rows;
  const RouterSpec& routing = args.routing;
  float* scores = logits_.get() + row * experts;
  Choice* choices = choices_.data() + int64_t{row} * args.top_k;
  Score(args, scores);
  if (routing.token_experts != nullptr) {
    const int32_t* fixed = routing.token_experts + int64_t{routing.token[row]} * args.top_k;
    for (int i = 0; i < args.top_k; ++i) choices[i] = {fixed[i], 0.0F, 0};
  } else if (routing.bias == nullptr && routing.groups == 1) {
    TakeLargest(scores, experts, args.top_k, choices);
  } else {
    const bool image = routing.image_bias != nullptr && routing.kind[row] == TokenKind::kImage;
    const Weight* bias = image ? routing.image_bias : routing.bias;
    for (int64_t e = 0; e < experts; ++e) {
      biased[e] = scores[e] + (bias != nullptr ? Cpu(*bias).vector[static_cast<size_t>(e)] : 0.0F);
    }
    if (routing.groups > 1) KeepBestGroups(args, biased);
    TakeLargest(biased, experts, args.top_k, choices);
  }
  std::sort(choices, choices + args.top_k,
            [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
  for (int i = 0; i < args.top_k; ++i) choices[i].weight = scores[choices[i].expert];
  WeighChoices(args, scores, choices);
}

void MoeStage::WeighChoices(const MoeArgs& args, const float* scores, Choice* choices) const {
  const int64_t experts = args.router->rows;
  float sum = 0.0F;
  if (args.routing.scoring == RouterScoring::kSoftmax) {
    // Over all experts, or over the chosen ones when their weights sum to one.
    float max = choices[0].weight;
    for (int i = 1; i < args.top_k; ++i) max = std::max(max, choices[i].weight);
    if (!args.normalize_top_k) {
      for (int64_t e = 0; e < experts; ++e) max = std::max(max, scores[e]);
      for (int64_t e = 0; e < experts; ++e) sum += std::exp(scores[e] - max);
    }
    for (int i = 0; i < args.top_k; ++i) {
      choices[i].weight = std::exp(choices[i].weight - max);
      if (args.normalize_top_k) sum += choices[i].weight;
    }
    sum += args.routing.normalize_eps;
    for (int i = 0; i < args.top_k; ++i) choices[i].weight /= sum;
  } else if (args.normalize_top_k) {
    for (int i = 0; i < args.top_k; ++i) sum += choices[i].weight;
    sum += args.routing.normalize_eps;
    for (int i = 0; i < args.top_k; ++i) choices[i].weight /= sum;
  }
  for (int i = 0; i < args.top_k; ++i) choices[i].weight *= args.routing.scale;
}

void MoeStage::SortByExpert(const MoeArgs& args) {
  const auto experts = static_cast<size_t>(args.router->rows);
  expert_begin_.assign(experts + 1, 0);
  for (const Choice& choice : choices_) ++expert_begin_[static_cast<size_t>(choice.expert) + 1];
  std::partial_sum(expert_begin_.begin(), expert_begin_.end(), expert_begin_.begin());
  entry_row_.resize(choices_.size());
  next_entry_.assign(expert_begin_.begin(), expert_begin_.end() - 1);
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    choice.entry = next_entry_[static_cast<size_t>(choice.expert)]++;
    entry_row_[static_cast<size_t>(choice.entry)] =
        static_cast<int32_t>(i / static_cast<size_t>(args.top_k));
  }
  const size_t known = entry_index_.size();
  if (known < choices_.size()) {
    entry_index_.resize(choices_.size());
    std::iota(entry_index_.begin() + static_cast<int64_t>(known), entry_index_.end(),
              static_cast<int32_t>(known));
  }
}

ActRows* MoeStage::HiddenOf(const PackedMatrix& down) {
  for (const std::unique_ptr<ActRows>& rows : hidden_rows_) {
    if (rows->cols() == down.cols() && rows->formats() == down.act_format()) return rows.get();
  }
  hidden_rows_.push_back(std::make_unique<ActRows>(down.cols(), down.act_format()));
  return hidden_rows_.back().get();
}

// A matrix that streams is found damaged in the middle of its products: all of them count as NaN.
void MoeStage::SpoilDamaged(std::span<const Product> products) {
  for (const Product& product : products) {
    const bool damaged =
        product.matrix->damaged() || (product.pair != nullptr && product.pair->damaged());
    if (!damaged) continue;
    std::fill_n(product.out, product.m * product.matrix->rows(),
                std::numeric_limits<float>::quiet_NaN());
  }
}

// The products of list_; with a cache of weights in groups whose weights fit into it together.
void MoeStage::RunList() {
  WeightCache* cache = context_->weight_cache.get();
  if (cache == nullptr) return products_->Run(list_);
  needs_.clear();
  for (const Product& product : list_) {
    needs_.push_back({product.matrix, product.pair, product.m});
  }
  for (size_t done = 0; done < list_.size();) {
    const size_t count = cache->Prepare(std::span(needs_).subspan(done), context_->pool.get());
    const auto group = std::span<const Product>(list_).subspan(done, count);
    products_->Run(group);
    if (cache->Release(context_->pool.get())) SpoilDamaged(group);
    done += count;
  }
}

void MoeStage::RunExperts(const MoeArgs& args) {
  const CpuWeight& gate = Cpu(*args.gate);
  const CpuWeight& up = Cpu(*args.up);
  const CpuWeight& down = Cpu(*args.down);
  const auto entries = static_cast<int64_t>(choices_.size());
  const int64_t inter = gate.rows;
  float* hidden = hidden_.Reserve(entries * inter);
  list_.clear();
  for (int64_t e = 0; e < args.router->rows; ++e) {
    const int32_t begin = expert_begin_[static_cast<size_t>(e)];
    const int32_t count = expert_begin_[static_cast<size_t>(e) + 1] - begin;
    if (count == 0) continue;
    list_.push_back({.matrix = &gate.matrix(e),
                     .pair = &up.matrix(e),
                     .expert = gate.index(e),
                     .pair_expert = up.index(e),
                     .input = &Cpu(*args.input).rows,
                     .input_rows = entry_row_.data() + begin,
                     .m = count,
                     .out = hidden + begin * inter,
                     .epilogue = Epilogue::kSiluMul,
                     .gate_limit = args.gate_limit});
  }
  RunList();

  ActRows* rows = HiddenOf(down.matrix());
  rows->Reserve(entries);
  const int per_chunk = RowsPerChunk(inter);
  const auto chunks = static_cast<int>((entries + per_chunk - 1) / per_chunk);
  context_->pool->Run(chunks, [&](int chunk, int) {
    const int64_t end = std::min(entries, (chunk + int64_t{1}) * per_chunk);
    for (int64_t i = int64_t{chunk} * per_chunk; i < end; ++i) {
      rows->SetRow(context_->isa, i, hidden + i * inter);
    }
  });

  float* outputs = outputs_.Reserve(entries * down.rows);
  list_.clear();
  for (int64_t e = 0; e < args.router->rows; ++e) {
    const int32_t begin = expert_begin_[static_cast<size_t>(e)];
    const int32_t count = expert_begin_[static_cast<size_t>(e) + 1] - begin;
    if (count == 0) continue;
    list_.push_back({.matrix = &down.matrix(e),
                     .expert = down.index(e),
                     .input = rows,
                     .input_rows = entry_index_.data() + begin,
                     .m = count,
                     .out = outputs + begin * down.rows});
  }
  RunList();
}

void MoeStage::Combine(const MoeArgs& args) {
  const int64_t hidden = args.down->rows;
  const int per_chunk = RowsPerChunk(hidden * args.top_k);
  context_->pool->Run((args.rows + per_chunk - 1) / per_chunk, [&](int chunk, int) {
    const int end = std::min(args.rows, (chunk + 1) * per_chunk);
    for (int row = chunk * per_chunk; row < end; ++row) {
      const Choice* choices = choices_.data() + int64_t{row} * args.top_k;
      for (int i = 0; i < args.top_k; ++i) {
        context_->rows->add_scaled(choices[i].weight, outputs_.get() + choices[i].entry * hidden,
                                   hidden, args.out + row * hidden);
      }
    }
  });
}

}  // namespace deepinfer::cpu
