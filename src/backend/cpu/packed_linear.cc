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

constexpr size_t kPieceBytes = size_t{1} << 30;
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

  void Place(std::shared_ptr<PackedArena::Piece> piece, uint8_t* data) {
    piece_ = std::move(piece);
    data_ = data;
  }

  Status Load(const TensorView& view, ComputePool* pool, PackedMatrix* from) override {
    auto* old = static_cast<Matrix*>(from);
    if (old != nullptr && old->bytes_ == bytes_ && old->data_ != nullptr) {
      Place(std::move(old->piece_), old->data_);
      // Rows and columns that are padded must read as zeros; the others are all written.
      if (rows_ % tile_rows_ != 0 || cols_ % kBlock != 0) memset(data_, 0, bytes_);
    } else if (data_ == nullptr) {
      std::shared_ptr<PackedArena::Piece> piece = MapPiece(bytes_);
      if (piece != nullptr) Place(piece, TakeBytes(piece.get(), bytes_));
    }
    if (old != nullptr) old->Unload();
    if (data_ == nullptr) {
      damaged_ = true;
      return Exhausted(
          Format("tensor {}: no address space for {} packed bytes", view.name, bytes_));
    }
    return Fill(view, pool);
  }

  void Unload() override {
    piece_.reset();
    data_ = nullptr;
    damaged_ = false;
  }

  bool loaded() const override { return data_ != nullptr; }

  // Packs every panel.
  Status Fill(const TensorView& view, ComputePool* pool) {
    const DTypeInfo& info = Info(view.dtype);
    const auto row_bytes = static_cast<size_t>(cols_ / info.block_elements * info.block_bytes);
    damaged_ = !FillPanels(view, row_bytes, pool);
    if (!damaged_) return {};
    return Invalid(Format("tensor {}: a value of {} is NaN or infinite; the file is damaged",
                          view.name,
                          HasScaleTensor(view.dtype) ? "a scale or code"
                          : info.block_elements > 1  ? "a scale"
                                                     : "an element"))
        .WithParam(view.name);
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
    if (data_ == nullptr || damaged_) {
      for (int64_t i = 0; i < m; ++i) {
        std::fill(y + i * stride + n_begin, y + i * stride + n_end,
                  std::numeric_limits<float>::quiet_NaN());
      }
      return;
    }
    const ActPlane& plane = input.storage().plane(static_cast<ActFormat>(act_format_));
    ProductArgs args;
    args.weights = data_ + expert * panels_ * panel_bytes_;
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
    product_(args);
  }

  void DecodeRow(int64_t row, float* out) const override {
    DI_CHECK(row >= 0 && row < rows_, "row {} of {}", row, rows_);
    DecodePanelRow(kind_, data_ + row / tile_rows_ * panel_bytes_,
                   static_cast<int>(row % tile_rows_), cols_, out);
  }

 private:
  // False when a scale or element is not finite.
  bool FillPanels(const TensorView& source, size_t row_bytes, ComputePool* pool) {
    const int64_t total = experts_ * panels_;
    const int64_t per_chunk = std::max<int64_t>(1, (int64_t{256} << 10) / panel_bytes_);
    const auto chunks = static_cast<int>((total + per_chunk - 1) / per_chunk);
    std::atomic<bool> finite{true};
    auto body = [&](int chunk, int) {
      const int64_t end = std::min(total, (chunk + 1) * per_chunk);
      for (int64_t p = chunk * per_chunk; p < end; ++p) {
        if (!FillPanel(source, row_bytes, p)) finite.store(false, std::memory_order_relaxed);
      }
    };
    if (pool != nullptr) {
      pool->Run(chunks, body);
    } else {
      for (int chunk = 0; chunk < chunks; ++chunk) body(chunk, 0);
    }
    return finite.load();
  }

  bool FillPanel(const TensorView& source, size_t row_bytes, int64_t panel) {
    const int64_t first = panel % panels_ * tile_rows_;
    const auto count = static_cast<int>(std::min(tile_rows_, rows_ - first));
    const std::byte* rows[kFloatPanel];
    const std::byte* scales[kFloatPanel] = {};
    for (int i = 0; i < count; ++i) {
      const int64_t row = panel / panels_ * rows_ + first + i;
      rows[i] = source.data + static_cast<size_t>(row) * row_bytes;
      if (source.scale != nullptr) {
        scales[i] = source.scale + row / source.scale_block_rows * source.scale_cols;
      }
    }
    const PanelSource panel_source = {source.dtype, rows, scales, source.scale_block_cols};
    return PackPanel(kind_, panel_source, count, cols_, data_ + panel * panel_bytes_);
  }

  PackKind kind_;
  ProductFn product_;
  int64_t panel_bytes_, steps_, panels_ = 0;
  std::shared_ptr<PackedArena::Piece> piece_;
  uint8_t* data_ = nullptr;
  bool damaged_ = false;
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
                                                         PackedArena* arena) {
  DI_ASSIGN(std::unique_ptr<Matrix> matrix, MakeMatrix(isa, view, float32));
  const size_t bytes = matrix->bytes();
  std::shared_ptr<PackedArena::Piece> piece = arena != nullptr ? arena->piece_ : nullptr;
  uint8_t* data = piece != nullptr ? TakeBytes(piece.get(), bytes) : nullptr;
  if (data == nullptr) {
    piece = MapPiece(arena != nullptr ? std::max(bytes, kPieceBytes) : bytes);
    if (piece == nullptr) {
      return Exhausted(Format("tensor {}: no address space for {} packed bytes", view.name, bytes));
    }
    data = TakeBytes(piece.get(), bytes);
    if (arena != nullptr) arena->piece_ = piece;
  }
  if (arena != nullptr) arena->used_bytes_ += bytes;
  matrix->Place(std::move(piece), data);
  DI_TRY(matrix->Fill(view, pool));
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
  // Few rows: at least 32 KiB a chunk. Many rows: 128 columns amortise the staging of inputs.
  const int64_t tile_bytes = static_cast<int64_t>(bytes_) / (experts_ * tiles);
  const int64_t run = std::max<int64_t>(1, (int64_t{32} << 10) / std::max<int64_t>(tile_bytes, 1));
  const int64_t most = m > 8 ? 128 / tile_rows_ : tiles;
  return std::clamp<int64_t>(std::max(even, run), 1, std::max<int64_t>(1, most)) * tile_rows_;
}

}  // namespace deepinfer::cpu
