#include "backend/cuda/sparse/sub_step.h"

#include <algorithm>

#include "backend/cuda/sparse/step_kernel.h"
#include "backend/cuda/sparse/step_views.h"

namespace deepinfer::cuda {

const int32_t* SubStep::TakeSuffix(StepInput* step, cudaStream_t stream) {
  const StepShape& shape = step->shape;
  const int bound =
      shape.suffix_tokens >= 0 ? std::min(shape.suffix_tokens, shape.num_tokens) : shape.num_tokens;
  return Take(Tokens::kSuffix, bound, step, stream);
}

const int32_t* SubStep::TakePairs(StepInput* step, cudaStream_t stream) {
  return Take(Tokens::kPairs, step->shape.num_tokens, step, stream);
}

const int32_t* SubStep::Take(Tokens which, int bound, StepInput* step, cudaStream_t stream) {
  const int rows = step->shape.num_rows;
  auto* memory = memory_.Array<int32_t>(int64_t{5} * bound + rows + 1);
  SubStepAt at{};
  at.step = ViewOf(*step);
  at.bound = bound;
  at.pairs = which == Tokens::kPairs;
  at.suffix_begin = at.pairs ? nullptr : step->suffix_begin;
  at.index = memory;
  at.token = at.index + bound;
  at.position = at.token + bound;
  at.token_row = at.position + bound;
  at.query_start = at.token_row + bound;
  at.kind = reinterpret_cast<uint8_t*>(at.query_start + rows + 1);
  step->shape.num_tokens = bound;
  step->shape.query_len_max = std::min(step->shape.query_len_max, bound);
  step->token = at.token;
  step->position = at.position;
  step->token_row = at.token_row;
  step->query_start = at.query_start;
  step->kind = reinterpret_cast<const TokenKind*>(at.kind);
  if (bound > 0 && rows > 0) TakeSubStep(at, stream);
  return at.index;
}

}  // namespace deepinfer::cuda
