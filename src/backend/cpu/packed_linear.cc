#include "backend/cpu/packed_linear.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "backend/cpu/act_storage.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/pack_panel.h"
#include "backend/cpu/packed_memory.h"
#include "base/check.h"
#include "base/format.h"

namespace deepinfer::cpu {
namespace {

// The next piece of an arena is as large as all before it, within these bounds: what is reserved
// stays in proportion to the model, for a process may be limited in addresses.
constexpr size_t kPieceBytesMin = size_t{32} << 20;
constexpr size_t kPieceBytesMax = size_t{1} << 30;
constexpr int64_t kPackBytes = int64_t{8} << 20;      // packed before their source is dropped
constexpr int64_t kScratchBytes = int64_t{96} << 10;  // of a product that streams, on the stack
constexpr int64_t kDimMax = int64_t{1} << 28;  // keeps every product of sizes far from overflow

struct Shape {
  int64_t experts = 1, rows = 0, cols = 0;
};

// [rows, cols] or [experts, rows, cols].
Result<Shape> MatrixShape(const TensorView& view) {
  const size_t dims = view.shape.size();
  if (dims != 2 && dims != 3) {
    return Invalid(
               Format("tensor {}: a product needs 2 or 3 dimensions, found {}", view.name, dims))
        .WithParam(view.name);
  }
  Shape shape;
  shape.experts = dims == 3 ? view.shape[0] : 1;
  shape.rows = view.shape[dims - 2];
  shape.cols = view.shape[dims - 1];
  for (int64_t d : view.shape) {
    if (d < 1 || d > kDimMax) {
      return Invalid(Format("tensor {}: dimension {} is out of range 1..{}", view.name, d, kDimMax))
          .WithParam(view.name);
    }
  }
  return shape;
}

ActFormat ActFormatOf(PackKind kind) {
  if (kind == kPackBF16 || kind == kPackF8) return kActBF16;
  return kind < kPackBF16 ? kActF32 : kActQ8;
}

class Matrix final : public PackedMatrix {
 public:
  Matrix(Isa isa, PackKind kind, const Shape& shape)
      : kind_(kind),
        product_(Kernels(isa).product[kind]),
        panel_bytes_(PanelBytes(kind, shape.cols)),
        steps_(PanelSteps(kind, shape.cols)) {
    rows_ = shape.rows;
    cols_ = shape.cols;
    experts_ = shape.experts;
    tile_rows_ = PanelRows(kind);
    panels_ = (rows_ + tile_rows_ - 1) / tile_rows_;
    bytes_ = static_cast<size_t>(experts_ * panels_ * panel_bytes_);
    act_format_ = ActFormatOf(kind);
  }

  void Own(std::shared_ptr<PackedArena::Piece> piece, uint8_t* data) {
    piece_ = std::move(piece);
    data_ = data;
    zeroed_ = true;
  }

  void Place(uint8_t* memory) override {
    data_ = memory;
    // Rows and columns that are padded must read as zeros; the others are all written.
    zeroed_ = rows_ % tile_rows_ == 0 && cols_ % kBlock == 0;
    damaged_ = false;
  }

  void Unload() override {
    data_ = nullptr;
    damaged_ = false;
  }

  bool loaded() const override { return data_ != nullptr; }
  bool damaged() const override { return damaged_.load(std::memory_order_relaxed); }

  bool Stream(const TensorView* view) override {
    stream_ = view;
    if (view == nullptr) return true;
    damaged_ = false;
    if (panel_bytes_ <= kScratchBytes) return true;
    stream_ = nullptr;
    return false;
  }
  int64_t panels() const override { return experts_ * panels_; }

  bool PackPanels(const TensorView& view, int64_t begin, int64_t end) override {
    const int64_t row_bytes = RowBytes(view.dtype);
    if (!zeroed_) {
      memset(data_ + begin * panel_bytes_, 0, static_cast<size_t>((end - begin) * panel_bytes_));
    }
    bool finite = true;
    for (int64_t p = begin; p < end; ++p) {
      finite = FillPanel(view, row_bytes, p, data_ + p * panel_bytes_) && finite;
    }
    return finite;
  }

  Status Fail(const TensorView& view) override {
    const DTypeInfo& info = Info(view.dtype);
    damaged_ = true;
    return Invalid(Format("tensor {}: a value of {} is NaN or infinite; the file is damaged",
                          view.name,
                          HasScaleTensor(view.dtype) ? "a scale or code"
                          : info.block_elements > 1  ? "a scale"
                                                     : "an element"))
        .WithParam(view.name);
  }

  // Packs every panel. Source pages of `file` go piece by piece behind the packing.
  Status Fill(const TensorView& view, ComputePool* pool, const TensorFile* file) {
    const int64_t per_piece =
        file == nullptr ? panels() : std::max<int64_t>(1, kPackBytes / panel_bytes_);
    bool finite = true;
    for (int64_t begin = 0; begin < panels(); begin += per_piece) {
      const int64_t end = std::min(panels(), begin + per_piece);
      finite = FillPiece(view, pool, begin, end) && finite;
      if (file == nullptr) continue;
      TensorView packed = view;
      packed.scale = nullptr;  // one for several rows, and small: at the end
      const int64_t row_bytes = RowBytes(view.dtype);
      const int64_t last = end == panels() ? experts_ * rows_ : RowOf(end);
      packed.data = view.data + RowOf(begin) * row_bytes;
      packed.bytes = static_cast<size_t>((last - RowOf(begin)) * row_bytes);
      file->Drop(packed);
    }
    if (file != nullptr && view.scale != nullptr) file->Drop(view);
    return finite ? Status() : Fail(view);
  }

  void Multiply(const ActRows& input, const int32_t* input_rows, int64_t m, int64_t expert,
                int64_t n_begin, int64_t n_end, float* y, int64_t stride) const override {
    DI_CHECK(input.cols() == cols_ && (input.formats() & act_format_) != 0,
             "input of {} columns and formats {} for a matrix of {} columns and format {}",
             input.cols(), input.formats(), cols_, act_format_);
    DI_CHECK(expert >= 0 && expert < experts_ && n_begin >= 0 && n_begin % tile_rows_ == 0 &&
                 n_end <= rows_ && (n_end % tile_rows_ == 0 || n_end == rows_),
             "expert {} of {}, weight rows {} to {} of {}", expert, experts_, n_begin, n_end,
             rows_);
    if (m <= 0 || n_begin >= n_end) return;
    const bool streams = data_ == nullptr && stream_ != nullptr;
    if (!streams && (data_ == nullptr || damaged())) {
      for (int64_t i = 0; i < m; ++i) {
        std::fill(y + i * stride + n_begin, y + i * stride + n_end,
                  std::numeric_limits<float>::quiet_NaN());
      }
      return;
    }
    const ActPlane& plane = input.storage().plane(static_cast<ActFormat>(act_format_));
    ProductArgs args;
    args.panel_bytes = panel_bytes_;
    args.steps = steps_;
    args.rows = rows_;
    args.act = plane.data();
    args.act_stride = plane.stride;
    args.input_rows = input_rows;
    args.m = m;
    args.n_begin = n_begin;
    args.n_end = n_end;
    args.y = y;
    args.y_stride = stride;
    if (streams) return StreamProduct(expert, args);
    args.weights = data_ + expert * panels_ * panel_bytes_;
    product_(args);
  }

  void DecodeRow(int64_t row, float* out) const override {
    DI_CHECK(row >= 0 && row < rows_, "row {} of {}", row, rows_);
    DecodePanelRow(kind_, data_ + row / tile_rows_ * panel_bytes_,
                   static_cast<int>(row % tile_rows_), cols_, out);
  }

 private:
  // As many panels at a time as the scratch holds.
  [[gnu::noinline]] void StreamProduct(int64_t expert, ProductArgs args) const {
    alignas(64) uint8_t scratch[kScratchBytes];
    const bool padded = rows_ % tile_rows_ != 0 || cols_ % kBlock != 0;
    const int64_t row_bytes = RowBytes(stream_->dtype);
    const int64_t last = (args.n_end + tile_rows_ - 1) / tile_rows_;
    const int64_t most = kScratchBytes / panel_bytes_;
    float* const y = args.y;
    const int64_t end = args.n_end;
    args.weights = scratch;
    for (int64_t panel = args.n_begin / tile_rows_; panel < last; panel += most) {
      const int64_t count = std::min(most, last - panel);
      if (padded) memset(scratch, 0, static_cast<size_t>(count * panel_bytes_));
      bool finite = true;
      for (int64_t p = 0; p < count; ++p) {
        finite = FillPanel(*stream_, row_bytes, expert * panels_ + panel + p,
                           scratch + p * panel_bytes_) &&
                 finite;
      }
      if (!finite) damaged_.store(true, std::memory_order_relaxed);
      const int64_t first = panel * tile_rows_;
      args.n_begin = 0;
      args.n_end = std::min(count * tile_rows_, end - first);
      args.rows = rows_ - first;
      args.y = y + first;
      product_(args);
    }
  }

  int64_t RowBytes(DType dtype) const {
    return cols_ / Info(dtype).block_elements * Info(dtype).block_bytes;
  }

  // The first row of a panel among those of all experts.
  int64_t RowOf(int64_t panel) const {
    return panel / panels_ * rows_ + panel % panels_ * tile_rows_;
  }

  // False when a scale or element is not finite.
  bool FillPiece(const TensorView& view, ComputePool* pool, int64_t first, int64_t last) {
    const int64_t per_chunk = std::max<int64_t>(1, kPackChunkBytes / panel_bytes_);
    const auto chunks = static_cast<int>((last - first + per_chunk - 1) / per_chunk);
    std::atomic<bool> finite{true};
    auto body = [&](int chunk, int) {
      const int64_t begin = first + chunk * per_chunk;
      if (!PackPanels(view, begin, std::min(last, begin + per_chunk))) {
        finite.store(false, std::memory_order_relaxed);
      }
    };
    if (pool != nullptr) {
      pool->Run(chunks, body);
    } else {
      for (int chunk = 0; chunk < chunks; ++chunk) body(chunk, 0);
    }
    return finite.load();
  }

  bool FillPanel(const TensorView& source, int64_t row_bytes, int64_t panel, uint8_t* to) const {
    const auto count = static_cast<int>(std::min(tile_rows_, rows_ - panel % panels_ * tile_rows_));
    const std::byte* rows[kFloatPanel];
    const std::byte* scales[kFloatPanel] = {};
    for (int i = 0; i < count; ++i) {
      const int64_t row = RowOf(panel) + i;
      rows[i] = source.data + row * row_bytes;
      if (source.scale != nullptr) {
        scales[i] = source.scale + row / source.scale_block_rows * source.scale_cols;
      }
    }
    const PanelSource panel_source = {source.dtype, rows, scales, source.scale_block_cols};
    return PackPanel(kind_, panel_source, count, cols_, to);
  }

  PackKind kind_;
  ProductFn product_;
  int64_t panel_bytes_, steps_, panels_ = 0;
  std::shared_ptr<PackedArena::Piece> piece_;
  uint8_t* data_ = nullptr;
  bool zeroed_ = true;  // data_ held zeros before panels were packed
  const TensorView* stream_ = nullptr;
  mutable std::atomic<bool> damaged_{false};  // products that stream find it, on any thread
};

}  // namespace

size_t PackedMatrix::PackedBytes(const TensorView& view, bool float32) {
  Result<Shape> shape = MatrixShape(view);
  const PackKind kind = float32 ? kPackF32 : KindOf(view.dtype);
  if (!shape.ok() || KindOf(view.dtype) == kPackKinds) return 0;
  const int64_t panel_rows = PanelRows(kind);
  const int64_t panels = (shape->rows + panel_rows - 1) / panel_rows;
  // Dimensions are below 2^28: checked step by step because three of them may overflow.
  int64_t bytes = 0;
  if (__builtin_mul_overflow(panels * shape->experts, PanelBytes(kind, shape->cols), &bytes)) {
    return 0;
  }
  return static_cast<size_t>(bytes);
}

namespace {

// A matrix for `view` that has no bytes yet.
Result<std::unique_ptr<Matrix>> MakeMatrix(Isa isa, const TensorView& view, bool float32) {
  DI_ASSIGN(const Shape shape, MatrixShape(view));
  const DTypeInfo& info = Info(view.dtype);
  if (KindOf(view.dtype) == kPackKinds) {
    return Invalid(
               Format("tensor {}: type {} has no product on the CPU; convert the weight to F32, "
                      "F16, BF16 or a block type, or bind it with its scales",
                      view.name, info.name))
        .WithParam(view.name);
  }
  if (shape.cols % info.block_elements != 0) {
    return Invalid(Format("tensor {}: {} columns are not a multiple of {}, the block of {}",
                          view.name, shape.cols, info.block_elements, info.name))
        .WithParam(view.name);
  }
  DI_CHECK(HasScaleTensor(view.dtype) == (view.scale != nullptr), "{} without scales", view.name);
  DI_ASSIGN(const size_t row_bytes, ByteSize(view.dtype, shape.cols));
  int64_t source_bytes = 0;
  if (PackedMatrix::PackedBytes(view, float32) == 0 ||
      __builtin_mul_overflow(shape.experts * shape.rows, static_cast<int64_t>(row_bytes),
                             &source_bytes) ||
      static_cast<size_t>(source_bytes) > view.bytes) {
    return Invalid(Format("tensor {}: {} bytes do not hold its {} x {} x {} elements of {}",
                          view.name, view.bytes, shape.experts, shape.rows, shape.cols, info.name))
        .WithParam(view.name);
  }
  return std::make_unique<Matrix>(isa, float32 ? kPackF32 : KindOf(view.dtype), shape);
}

}  // namespace

Result<std::unique_ptr<PackedMatrix>> PackedMatrix::Pack(Isa isa, const TensorView& view,
                                                         bool float32, ComputePool* pool,
                                                         PackedArena* arena,
                                                         const TensorFile* file) {
  DI_ASSIGN(std::unique_ptr<Matrix> matrix, MakeMatrix(isa, view, float32));
  const size_t bytes = matrix->bytes();
  std::shared_ptr<PackedArena::Piece> piece = arena != nullptr ? arena->piece_ : nullptr;
  uint8_t* data = piece != nullptr ? TakeBytes(piece.get(), bytes) : nullptr;
  if (data == nullptr) {
    piece = MapPiece(
        arena == nullptr
            ? bytes
            : std::max(bytes, std::clamp(arena->used_bytes_, kPieceBytesMin, kPieceBytesMax)));
    if (piece == nullptr) {
      return Exhausted(Format("tensor {}: no address space for {} packed bytes", view.name, bytes));
    }
    data = TakeBytes(piece.get(), bytes);
    if (arena != nullptr) arena->piece_ = piece;
  }
  if (arena != nullptr) arena->used_bytes_ += bytes;
  matrix->Own(std::move(piece), data);
  DI_TRY(matrix->Fill(view, pool, file));
  return std::unique_ptr<PackedMatrix>(std::move(matrix));
}

Result<std::unique_ptr<PackedMatrix>> PackedMatrix::Plan(Isa isa, const TensorView& view,
                                                         bool float32) {
  DI_ASSIGN(std::unique_ptr<Matrix> matrix, MakeMatrix(isa, view, float32));
  return std::unique_ptr<PackedMatrix>(std::move(matrix));
}

int64_t PackedMatrix::ChunkRows(int64_t m, int threads) const {
  const int64_t tiles = (rows_ + tile_rows_ - 1) / tile_rows_;
  // Four chunks a thread balance uneven threads.
  const int64_t even = (tiles + 4 * threads - 1) / (4 * std::max(threads, 1));
  // Few rows: 32 to 128 KiB a chunk, so that no thread waits long for the last chunk of another.
  // Many rows: 128 columns amortise the staging of inputs.
  const int64_t tile_bytes = static_cast<int64_t>(bytes_) / (experts_ * tiles);
  const int64_t run = std::max<int64_t>(1, (int64_t{32} << 10) / std::max<int64_t>(tile_bytes, 1));
  const int64_t most = m > 8 ? 128 / tile_rows_ : 4 * run;
  return std::clamp<int64_t>(std::max(even, run), 1, std::max<int64_t>(1, most)) * tile_rows_;
}

}  // namespace deepinfer::cpu
