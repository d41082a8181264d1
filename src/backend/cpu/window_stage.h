// Attention over a sliding window of FP8 rows and selected FP4 entries, with sink and inverse rope.
// Keys are values; all heads share them. A token's rows stand in the order window ascending, then
// entries ascending, and are taken in tiles of 64 of that list. In float32 mode the softmax runs
// over the whole list, in plain loops. Owned by CpuSparseOps; called on the runner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/cpu_context.h"
#include "backend/cpu/rope_table.h"
#include "backend/cpu/step_rows.h"
#include "backend/sparse_ops.h"

namespace deepinfer::cpu {

class WindowStage {
 public:
  explicit WindowStage(const CpuContext* context) : context_(context) {}
  void Encode(const StepInput& step, const WindowSpec& spec, const WindowArgs& args);
  void Attend(const StepInput& step, const WindowSpec& spec, const WindowArgs& args);
  void Store(const StepInput& step, const WindowSpec& spec, const WindowArgs& args);
  void AttendDraft(const WindowSpec& spec, const DraftWindowArgs& args);

 private:
  // One query token under all heads.
  struct Query {
    const float* q = nullptr;
    float* out = nullptr;
    int rope = 0;  // index in rope_
  };
  // The rows that a query sees: window rows ascending, then entries ascending.
  struct List {
    const std::byte* fresh = nullptr;  // of position fresh_first on: rows of this step
    int fresh_first = 0;               // position
    int window_first = 0;              // position
    int window = 0;                    // rows
    const int32_t* selected = nullptr;
    int count = 0;  // with entries
    int row = 0;
    int slot = 0;
  };
  // Neighbouring queries of a row.
  struct Group {
    int first = 0;
    int count = 0;
    int window_first = 0;  // position
    int window_end = 0;    // position
  };
  // Running softmax of some heads of a query.
  struct State {
    float* q = nullptr;    // [heads, dim] scaled
    float* acc = nullptr;  // [heads, dim]
    float* max = nullptr;
    float* sum = nullptr;
  };
  void EncodeToken(const WindowSpec& spec, int token, float* q, const float* kv, std::byte* row,
                   float* scratch) const;
  List ListOf(const StepInput& step, const WindowSpec& spec, const WindowArgs& args,
              int token) const;
  void DecodeWindow(const WindowSpec& spec, const StateView& ring, const List& list, int first,
                    int count, float* out) const;
  void DecodeEntries(const WindowSpec& spec, const HistoryView& entries, const List& list,
                     int first, int count, float* out) const;
  void DecodeTile(const WindowSpec& spec, const StateView& ring, const HistoryView* entries,
                  const List& list, int tile, float* out) const;
  void AttendPlainly(const WindowSpec& spec, const Query& query, const List& list,
                     const float* tiles, int head, int heads, float* scores) const;
  void StartHeads(const WindowSpec& spec, const Query& query, int head, int heads,
                  const State& state) const;
  void AttendTile(const WindowSpec& spec, const float* const* rows, int count, int heads,
                  const State& state) const;
  void FinishHeads(const WindowSpec& spec, const Query& query, int head, int heads,
                   const State& state) const;
  static int TilesOf(const List& list) { return (list.count + kAttendRows - 1) / kAttendRows; }
  State StateOf(const WindowSpec& spec, int heads, int thread) const;
  void GroupQueries(int most);
  void AttendWithWindow(const WindowSpec& spec, const HistoryView* entries, int query,
                        const float* window, float* tile_rows, const State& state) const;
  void AttendWhole(const WindowSpec& spec, const StateView& ring, const HistoryView* entries);
  void AttendLists(const WindowSpec& spec, const StateView& ring, const HistoryView* entries);
  void StoreRows(const StepInput& step, const WindowSpec& spec, const WindowArgs& args) const;

  const CpuContext* context_;
  RopeTable rope_;
  std::vector<int32_t> positions_;
  std::vector<Query> queries_;  // of the call; dead tokens have none
  std::vector<List> lists_;     // one per query, or per equal number of queries
  std::vector<Group> groups_;
  Floats rows_;     // decoded tiles [64, dim] of lists in work
  Floats scratch_;  // [threads, states or a row]
  int64_t scratch_stride_ = 0;
};

}  // namespace deepinfer::cpu
