// The index arithmetic that kernels of a device share with the host: rows of caches and live tokens
// of a step, against the arithmetic of the plain loops. Needs no device.
#include "backend/cuda/sparse/row_views.h"

#include <gtest/gtest.h>

#include <vector>

#include "backend/cpu/step_rows.h"

namespace deepinfer {
namespace {

// Three rows of a step, the last one without a live token, over scattered blocks.
struct Scene {
  CacheLayout layout;
  std::vector<std::byte> blocks, slots;
  std::vector<int32_t> table = {3, 0, 5, 1, 4, 2};
  std::vector<int32_t> token_row = {0, 0, 0, 0, 1, 1, 2, 2};
  std::vector<int32_t> query_start = {0, 4, 6, 8};
  std::vector<TokenKind> kind;
  StepInput step;

  Scene() {
    layout.history.push_back({.name = "entries", .ratio = 4, .layers = 3, .row_bytes = 18});
    layout.history.push_back({.name = "keys", .ratio = 2, .layers = 2, .row_bytes = 17});
    layout.state.push_back({.name = "ids", .layers = 1, .positions = 5, .position_bytes = 4});
    layout.state.push_back({.name = "rows", .layers = 2, .positions = 7, .position_bytes = 33});
    blocks.resize(static_cast<size_t>(6 * layout.block_bytes()));
    slots.resize(static_cast<size_t>(3 * layout.slot_bytes()));
    const TokenKind text = TokenKind::kText, dead = TokenKind::kDead;
    kind = {text, TokenKind::kImage, text, dead, text, text, dead, dead};
    step.shape = {.num_rows = 3, .num_tokens = 8};
    step.token_row = token_row.data();
    step.query_start = query_start.data();
    step.kind = kind.data();
    step.block_table = table.data();
    step.block_table_stride = 2;
    step.cache_blocks = blocks.data();
    step.cache_slots = slots.data();
    step.layout = &layout;
  }
};

TEST(RowViews, RowsAreThoseOfThePlainLoops) {
  const Scene scene;
  const StepInput& step = scene.step;
  for (int group = 0; group < 2; ++group) {
    const HistoryGroup& rows = scene.layout.history[static_cast<size_t>(group)];
    const int per_block = scene.layout.block_tokens / rows.ratio;
    for (int layer = 0; layer < rows.layers; ++layer) {
      const cpu::HistoryView want(step, {group, layer}, rows.row_bytes);
      const cuda::HistoryAt got{.base = step.cache_blocks + scene.layout.history_offset(
                                                                static_cast<size_t>(group), layer),
                                .table = step.block_table,
                                .table_stride = step.block_table_stride,
                                .per_block = per_block,
                                .block_bytes = scene.layout.block_bytes(),
                                .row_bytes = rows.row_bytes};
      for (int row = 0; row < 3; ++row) {
        for (int entry = 0; entry < 2 * per_block; ++entry) {
          EXPECT_EQ(got.Entry(row, entry), want.Entry(row, entry));
        }
      }
    }
  }
  const StateGroup& state = scene.layout.state[1];
  const cpu::StateView want(step, 1, 1, state.position_bytes);
  const cuda::StateAt got{.base = step.cache_slots + scene.layout.state_offset(1, 1),
                          .slot_bytes = scene.layout.slot_bytes(),
                          .position_bytes = state.position_bytes,
                          .positions = state.positions};
  for (int slot = 0; slot < 3; ++slot) {
    for (const int position : {0, 6, 7, 1'000'003}) {
      EXPECT_EQ(got.At(slot, position), want.At(slot, position));
    }
  }
}

TEST(RowViews, LiveTokensAreThoseOfThePlainLoops) {
  const Scene scene;
  const cuda::StepAt at{.num_rows = 3,
                        .num_tokens = 8,
                        .token_row = scene.token_row.data(),
                        .query_start = scene.query_start.data(),
                        .kind = reinterpret_cast<const uint8_t*>(scene.kind.data())};
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(at.LiveEnd(row),
              scene.query_start[static_cast<size_t>(row)] + cpu::LiveTokens(scene.step, row));
  }
  const std::vector<bool> last_two = {false, true, true, false, true, true, false, false};
  for (int t = 0; t < 8; ++t) {
    EXPECT_EQ(at.Survives(t, 2), last_two[static_cast<size_t>(t)]) << t;
    EXPECT_EQ(at.Survives(t, 100), scene.kind[static_cast<size_t>(t)] != TokenKind::kDead) << t;
  }
}

}  // namespace
}  // namespace deepinfer
