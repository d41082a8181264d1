#include "models/quantize_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/format.h"
#include "models/quantize_metadata.h"
#include "models/quantize_types.h"
#include "tensor/dequantize.h"
#include "tensor/gguf_writer.h"
#include "tensor/quantize.h"

namespace deepinfer {
namespace {

constexpr size_t kChunkElements = size_t{2} << 20;  // rows encoded between two writes

// One tensor of the output: the rows of `parts` one after another.
struct OutputTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<TensorView> parts;
  // > 0: rows of each head of this many rows change from halves to interleaved pairs.
  int64_t interleave_rows = 0;
};

bool IsQuantised(DType dtype) { return Info(dtype).block_elements > 1; }

// GGUF rotates pairs (2i, 2i + 1) of a Llama head, Hugging Face (i, i + d/2): the row stored at
// place r of a head comes from place r/2, or d/2 + r/2 for odd r.
int64_t SourceRow(int64_t row, int64_t head_rows) {
  if (head_rows == 0) return row;
  const int64_t in_head = row % head_rows;
  return row - in_head + in_head / 2 + (in_head % 2) * (head_rows / 2);
}

class Quantizer {
 public:
  Quantizer(const Checkpoint& checkpoint, const QuantizationType& type,
            const QuantizeOptions& options)
      : checkpoint_(checkpoint), type_(type), options_(options) {}

  Result<QuantizeSummary> Run(const std::string& output) {
    DI_TRY(Plan());
    DI_ASSIGN(std::unique_ptr<GgufWriter> writer, GgufWriter::Create(output));
    DI_TRY(WriteMetadata(writer.get()));
    for (const OutputTensor& tensor : tensors_) {
      DI_TRY(writer->AddTensor(tensor.name, tensor.dtype, tensor.shape));
    }
    if (!rope_factors_.empty()) {
      const int64_t shape[] = {static_cast<int64_t>(rope_factors_.size())};
      DI_TRY(writer->AddTensor("rope_freqs.weight", DType::kF32, shape));
    }
    DI_TRY(writer->WriteHeader());
    summary_.bytes_out = writer->data_bytes();
    for (const OutputTensor& tensor : tensors_) DI_TRY(Write(tensor, writer.get()));
    if (!rope_factors_.empty()) DI_TRY(writer->WriteData(std::as_bytes(std::span(rope_factors_))));
    DI_TRY(writer->Finish());
    return summary_;
  }

 private:
  const ModelConfig& config() const { return checkpoint_.config(); }

  Status Plan() {
    if (config().family == ModelFamily::kOwn) {
      return Invalid(Format("architecture {} has no GGUF layout", config().architecture));
    }
    const bool permute = checkpoint_.format() == CheckpointFormat::kSafetensors &&
                         config().family == ModelFamily::kLlama;
    if (permute && config().rope.dim != config().head_dim) {
      return Invalid(
          Format("a Llama whose rotary embedding covers {} of {} elements has no GGUF "
                 "layout",
                 config().rope.dim, config().head_dim));
    }
    DI_TRY(PlanTensor(TensorRole::kTokenEmbedding, 0, false));
    for (int layer = 0; layer < config().layers; ++layer) {
      for (int r = static_cast<int>(TensorRole::kAttnNorm); r < kNumTensorRoles; ++r) {
        const auto role = static_cast<TensorRole>(r);
        const bool rotated = role == TensorRole::kQ || role == TensorRole::kK ||
                             role == TensorRole::kQBias || role == TensorRole::kKBias;
        DI_TRY(PlanTensor(role, layer, permute && rotated));
      }
    }
    DI_TRY(PlanTensor(TensorRole::kOutputNorm, 0, false));
    DI_TRY(PlanTensor(TensorRole::kOutput, 0, false));
    PlanRopeFactors();
    return {};
  }

  Status PlanTensor(TensorRole role, int layer, bool interleave) {
    OutputTensor tensor;
    tensor.shape = ExpectedShape(config(), role, layer);
    if (tensor.shape.empty()) return {};
    if (IsExpertRole(role)) {
      const std::span<const TensorView> experts = checkpoint_.Experts(role, layer);
      tensor.parts.assign(experts.begin(), experts.end());
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(experts.size()));
    } else {
      tensor.parts = {*checkpoint_.Find(role, layer)};
    }
    tensor.name = TensorName(CheckpointFormat::kGguf, role, layer);
    tensor.dtype = StoredType(type_, config(), role, layer, tensor.shape.back());
    if (interleave) tensor.interleave_rows = config().head_dim;
    const DType from = tensor.parts.front().dtype;
    if (IsQuantised(from) && from != tensor.dtype && options_.requantize == Requantize::kRefuse) {
      return Invalid(
          Format("tensor {} is already quantised ({}); encoding it again as {} loses "
                 "accuracy twice. Use an unquantised source, or --allow-requantize for "
                 "speed tests",
                 tensor.parts.front().name, Info(from).name, Info(tensor.dtype).name));
    }
    ++summary_.tensors;
    for (const TensorView& part : tensor.parts) summary_.bytes_in += part.bytes;
    tensors_.push_back(std::move(tensor));
    return {};
  }

  // Llama 3's frequency bands live in a tensor of divisors.
  void PlanRopeFactors() {
    const TensorView* copied = checkpoint_.file().Find("rope_freqs.weight");
    if (copied != nullptr) {
      rope_factors_ = DequantizeTensor(*copied).value();  // checked when the checkpoint was opened
      return;
    }
    const RopeConfig& rope = config().rope;
    if (rope.scaling != RopeScaling::kLlama3) return;
    for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
      const double unscaled = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.dim);
      rope_factors_.push_back(static_cast<float>(unscaled / static_cast<double>(rope.inv_freq[i])));
    }
  }

  Status WriteMetadata(GgufWriter* writer) const {
    if (checkpoint_.gguf_metadata() != nullptr) {
      CopyMetadata(*checkpoint_.gguf_metadata(), type_, writer);
      return {};
    }
    WriteConfigMetadata(config(), type_, writer);
    if (!checkpoint_.tokenizer().has_value()) {
      writer->SetString("tokenizer.ggml.model", "none");
      return {};
    }
    TokenizerSpec spec = *checkpoint_.tokenizer();
    if (spec.eos_id < 0 && !config().eos_ids.empty()) spec.eos_id = config().eos_ids.front();
    if (spec.bos_id < 0) spec.bos_id = config().bos_id;
    return WriteTokenizerMetadata(spec, config().vocab, checkpoint_.chat_template(), writer);
  }

  void Report(const std::string& name) {
    if (options_.progress.report == nullptr) return;
    options_.progress.report(options_.progress.context, written_, summary_.bytes_out, name);
  }

  Status Write(const OutputTensor& tensor, GgufWriter* writer) {
    Report(tensor.name);
    for (const TensorView& part : tensor.parts) {
      if (part.dtype == tensor.dtype && tensor.interleave_rows == 0) {
        DI_TRY(writer->WriteData({part.data, part.bytes}));
        written_ += part.bytes;
        Report(tensor.name);
      } else {
        DI_TRY(Encode(tensor, part, writer));
      }
      checkpoint_.file().Drop(part);
    }
    return {};
  }

  // A vector counts as one row per element when its elements are reordered.
  Status Encode(const OutputTensor& tensor, const TensorView& part, GgufWriter* writer) {
    const bool by_element = tensor.interleave_rows > 0 && part.shape.size() == 1;
    const int64_t cols = by_element ? 1 : part.shape.back();
    const int64_t rows = part.elements() / cols;
    const auto chunk_rows = std::max<int64_t>(static_cast<int64_t>(kChunkElements) / cols, 1);
    const size_t row_bytes = *ByteSize(tensor.dtype, cols);
    std::vector<std::byte> encoded;
    for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const int64_t count = std::min(chunk_rows, rows - begin);
      encoded.resize(static_cast<size_t>(count) * row_bytes);
      DI_TRY(EncodeRows(tensor, part, cols, begin, count, encoded.data()));
      DI_TRY(writer->WriteData(encoded));
      written_ += encoded.size();
      Report(tensor.name);
    }
    return {};
  }

  Status EncodeRows(const OutputTensor& tensor, const TensorView& part, int64_t cols, int64_t begin,
                    int64_t count, std::byte* out) const {
    constexpr int64_t kRowsPerTask = 16;
    const auto tasks = static_cast<int>((count + kRowsPerTask - 1) / kRowsPerTask);
    const size_t row_bytes = *ByteSize(tensor.dtype, cols);
    const size_t source_bytes = *ByteSize(part.dtype, cols);
    std::vector<Status> failures(static_cast<size_t>(tasks));
    const auto body = [&](int task, int) {
      std::vector<float> row(static_cast<size_t>(cols));
      const int64_t last = std::min(count, (task + 1) * kRowsPerTask);
      for (int64_t i = task * kRowsPerTask; i < last; ++i) {
        const int64_t source = SourceRow(begin + i, tensor.interleave_rows);
        const std::byte* bytes = part.data + static_cast<size_t>(source) * source_bytes;
        if (!AllFinite(part.dtype, bytes, cols)) {
          failures[static_cast<size_t>(task)] =
              Invalid(Format("row {}: a value or scale is NaN or infinite", source));
          return;
        }
        DequantizeRow(part.dtype, bytes, cols, row.data());
        Status status =
            QuantizeRow(tensor.dtype, row.data(), cols, out + static_cast<size_t>(i) * row_bytes);
        if (!status.ok()) {
          failures[static_cast<size_t>(task)] =
              Invalid(Format("row {}: {}", source, status.message()));
          return;
        }
      }
    };
    if (options_.pool != nullptr) {
      options_.pool->Run(tasks, body);
    } else {
      for (int task = 0; task < tasks; ++task) body(task, 0);
    }
    for (const Status& failure : failures) {
      if (!failure.ok()) return Invalid(Format("tensor {}, {}", part.name, failure.message()));
    }
    return {};
  }

  const Checkpoint& checkpoint_;
  const QuantizationType& type_;
  const QuantizeOptions& options_;
  std::vector<OutputTensor> tensors_;
  std::vector<float> rope_factors_;
  QuantizeSummary summary_;
  uint64_t written_ = 0;
};

}  // namespace

Result<QuantizeSummary> QuantizeCheckpoint(const Checkpoint& checkpoint, const std::string& output,
                                           const QuantizeOptions& options) {
  DI_ASSIGN(const QuantizationType type, ParseQuantizationType(options.type));
  return Quantizer(checkpoint, type, options).Run(output);
}

}  // namespace deepinfer
