#include "backend/cuda/cuda_moe_stage.h"

#include "backend/cuda/sparse/product_kernel.h"
#include "backend/cuda/sparse/router_kernel.h"
#include "base/check.h"

namespace deepinfer::cuda {
namespace {

ScoringAt ScoringOf(RouterScoring scoring) {
  switch (scoring) {
    case RouterScoring::kSoftmax:
      return kScoreSoftmax;
    case RouterScoring::kSigmoid:
      return kScoreSigmoid;
    case RouterScoring::kSqrtSoftplus:
      return kScoreSqrtSoftplus;
  }
  return kScoreSoftmax;
}

ProductAt Plain(const StoredMatrix& matrix, const void* input, int rows, float* out) {
  ProductAt at{};
  at.matrix = matrix;
  at.input = input;
  at.groups = 1;
  at.rows = rows;
  at.out = out;
  at.out_stride = matrix.rows;
  return at;
}

}  // namespace

void CudaMoeStage::Run(const MoeArgs& args) {
  if (args.rows == 0) return;
  const RouterSpec& routing = args.routing;
  DI_CHECK(args.top_k > 0 && args.top_k <= args.router->rows && args.top_k <= kTopExpertsMost,
           "top {} of {} experts", args.top_k, args.router->rows);
  DI_CHECK(routing.groups >= 1 && routing.groups <= kExpertGroupsMost &&
               args.router->rows % routing.groups == 0 && routing.group_top_k >= 1,
           "{} groups of {} experts", routing.groups, args.router->rows);
  RouteRows(args);
  RunExperts(args);
}

void CudaMoeStage::RouteRows(const MoeArgs& args) {
  const auto experts = static_cast<int>(args.router->rows);
  const int64_t choices = int64_t{args.rows} * args.top_k;
  float* logits = logits_.Floats(int64_t{args.rows} * experts);
  const StoredMatrix& router = StoredOf(*args.router);
  RunProduct(Plain(router, InputOf(*args.input, router), args.rows, logits), context_->stream);
  const RouterSpec& routing = args.routing;
  Route({.logits = logits,
         .rows = args.rows,
         .experts = experts,
         .top_k = args.top_k,
         .scoring = ScoringOf(routing.scoring),
         .normalize = args.normalize_top_k,
         .bias = Vector(routing.bias),
         .image_bias = Vector(routing.image_bias),
         .kind = reinterpret_cast<const uint8_t*>(routing.kind),
         .groups = routing.groups,
         .group_top_k = routing.group_top_k,
         .normalize_eps = routing.normalize_eps,
         .scale = routing.scale,
         .token_experts = TokenExperts(args),
         .token = routing.token,
         .expert = expert_.Array<int32_t>(choices),
         .weight = weight_.Floats(choices)},
        context_->stream);
  SortByExpert({.expert = expert_.Array<int32_t>(0),
                .rows = args.rows,
                .top_k = args.top_k,
                .experts = experts,
                .begin = begin_.Array<int32_t>(experts + 1),
                .entry = entry_.Array<int32_t>(choices),
                .entry_row = entry_row_.Array<int32_t>(choices)},
               context_->stream);
}

// The table of a router in device memory.
const int32_t* CudaMoeStage::TokenExperts(const MoeArgs& args) {
  const RouterSpec& routing = args.routing;
  if (routing.token_experts == nullptr) return nullptr;
  const auto [at, is_new] = token_experts_.try_emplace(routing.token_experts);
  const int64_t count = int64_t{routing.token_count} * args.top_k;
  auto* table = at->second.Array<int32_t>(count);
  if (is_new) {
    context_->Upload(routing.token_experts, static_cast<size_t>(count) * sizeof(int32_t), table);
  }
  return table;
}

void CudaMoeStage::RunExperts(const MoeArgs& args) {
  const StoredMatrix& gate = StoredOf(*args.gate);
  const StoredMatrix& down = StoredOf(*args.down);
  const auto experts = static_cast<int>(args.router->rows);
  const int entries = args.rows * args.top_k;
  float* hidden = hidden_.Floats(int64_t{entries} * gate.rows);
  ProductAt at = Plain(gate, InputOf(*args.input, gate), entries, hidden);
  at.pair = StoredOf(*args.up);
  at.begin = begin_.Array<int32_t>(0);
  at.groups = experts;
  at.input_row = entry_row_.Array<int32_t>(0);
  at.epilogue = kProductSiluMul;
  at.gate_limit = args.gate_limit;
  RunProduct(at, context_->stream);

  const bool float32 = down.type == kStoredF32;
  auto* input = input_.Array<std::byte>(int64_t{entries} * down.padded_cols() * (float32 ? 4 : 2));
  PrepareInput({.x = hidden,
                .stride = gate.rows,
                .index = nullptr,
                .rows = entries,
                .groups = 1,
                .cols = down.cols,
                .norm = nullptr,
                .norm_eps = 0.0F,
                .float32 = float32 ? reinterpret_cast<float*>(input) : nullptr,
                .bf16 = float32 ? nullptr : input},
               context_->stream);
  float* outputs = outputs_.Floats(int64_t{entries} * down.rows);
  at = Plain(down, input, entries, outputs);
  at.begin = begin_.Array<int32_t>(0);
  at.groups = experts;
  RunProduct(at, context_->stream);
  Combine({.y = outputs,
           .entry = entry_.Array<int32_t>(0),
           .weight = weight_.Floats(0),
           .rows = args.rows,
           .top_k = args.top_k,
           .cols = down.rows,
           .out = args.out},
          context_->stream);
}

}  // namespace deepinfer::cuda
