#include "tensor/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/check.h"
#include "base/format.h"

namespace deepinfer {
namespace {

// Limits of what any real file holds; counts are also checked against the file's size.
constexpr uint64_t kKeyBytesMax = 65'535;  // the format's own limit
constexpr uint64_t kNameBytesMax = 1'024;  // the format says 64
constexpr uint32_t kDimensionsMax = 4;     // the format's own limit
constexpr uint64_t kAlignmentMax = 1U << 20;
constexpr int kPartsMax = 10'000;
constexpr uint64_t kEntryBytesMin = 8 + 4 + 1;           // key length, type, one byte of value
constexpr uint64_t kTensorInfoBytesMin = 8 + 4 + 4 + 8;  // name length, dimensions, type, offset

struct TensorTypeRow {
  uint32_t code;
  std::string_view name;
  int dtype;  // DType, or -1 for types that are known by name only
};

constexpr int Id(DType dtype) { return static_cast<int>(dtype); }

constexpr std::array<TensorTypeRow, 35> kTensorTypes = {{
    {0, "F32", Id(DType::kF32)},
    {1, "F16", Id(DType::kF16)},
    {2, "Q4_0", Id(DType::kQ4_0)},
    {3, "Q4_1", Id(DType::kQ4_1)},
    {6, "Q5_0", Id(DType::kQ5_0)},
    {7, "Q5_1", Id(DType::kQ5_1)},
    {8, "Q8_0", Id(DType::kQ8_0)},
    {9, "Q8_1", -1},
    {10, "Q2_K", -1},
    {11, "Q3_K", -1},
    {12, "Q4_K", Id(DType::kQ4_K)},
    {13, "Q5_K", Id(DType::kQ5_K)},
    {14, "Q6_K", Id(DType::kQ6_K)},
    {15, "Q8_K", -1},
    {16, "IQ2_XXS", -1},
    {17, "IQ2_XS", -1},
    {18, "IQ3_XXS", -1},
    {19, "IQ1_S", -1},
    {20, "IQ4_NL", -1},
    {21, "IQ3_S", -1},
    {22, "IQ2_S", -1},
    {23, "IQ4_XS", -1},
    {24, "I8", Id(DType::kI8)},
    {25, "I16", -1},
    {26, "I32", Id(DType::kI32)},
    {27, "I64", Id(DType::kI64)},
    {28, "F64", -1},
    {29, "IQ1_M", -1},
    {30, "BF16", Id(DType::kBF16)},
    {34, "TQ1_0", -1},
    {35, "TQ2_0", -1},
    {39, "MXFP4", Id(DType::kMXFP4)},
    {40, "NVFP4", -1},
    {41, "type 41", -1},
    {42, "type 42", -1},
}};

constexpr std::array<std::string_view, 13> kTypeNames = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::array<uint8_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

template <typename T>
T Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::string_view AsText(std::span<const std::byte> raw) {
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

// A key or name in a message: printable and short, whatever the file says.
std::string Shown(std::string_view text) {
  constexpr size_t kShownMax = 100;
  std::string out;
  for (const char c : text.substr(0, kShownMax)) {
    out += (c >= 32 && c < 127) ? c : '?';
  }
  if (text.size() > kShownMax) out += "...";
  return out;
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  const auto index = static_cast<size_t>(type);
  return index < kTypeNames.size() ? kTypeNames[index] : "unknown";
}

uint32_t GgufTensorType(DType dtype) {
  for (const TensorTypeRow& row : kTensorTypes) {
    if (row.dtype == Id(dtype)) return row.code;
  }
  DI_CHECK(false, "{} has no GGUF type", Info(dtype).name);
  return 0;
}

// Reads one file front to back. Every read is checked against the bytes that are left.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string_view name)
      : bytes_(bytes), file_(name) {}

  Status ParseInto(GgufMetadata* metadata, TensorIndex* index) {
    DI_TRY(Header());
    DI_TRY(Metadata(metadata));
    DI_TRY(TensorInfos(index));
    return {};
  }

 private:
  struct PendingTensor {
    TensorView view;
    uint64_t offset = 0;
  };

  uint64_t left() const { return bytes_.size() - position_; }

  Status Error(std::string message) const {
    return Invalid(Format("{}: {}", file_, message)).WithParam(std::string(file_));
  }
  Status Truncated(std::string_view what) const {
    return Error(Format("the file ends at byte {} inside {}; it is truncated or damaged",
                        bytes_.size(), what));
  }

  template <typename T>
  Result<T> Read(std::string_view what) {
    if (left() < sizeof(T)) return Truncated(what);
    const T value = Load<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }

  Result<std::string_view> ReadText(uint64_t bytes_max, std::string_view what) {
    DI_ASSIGN(const uint64_t bytes, Read<uint64_t>(what));
    if (bytes > bytes_max) {
      return Error(Format("{} at byte {} claims {} bytes; at most {} are allowed", what,
                          position_ - 8, bytes, bytes_max));
    }
    if (bytes > left()) return Truncated(what);
    const std::string_view text = AsText(bytes_.subspan(position_, bytes));
    position_ += bytes;
    return text;
  }

  Status Header() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      return Error("not a GGUF file: it does not start with \"GGUF\"");
    }
    position_ = 4;
    DI_ASSIGN(const uint32_t version, Read<uint32_t>("the header"));
    if (version == 0x02000000U || version == 0x03000000U) {
      return Error("a big-endian GGUF file; only little-endian files can be read");
    }
    if (version != 2 && version != 3) {
      return Error(Format("GGUF version {}; versions 2 and 3 can be read", version));
    }
    DI_ASSIGN(num_tensors_, Read<uint64_t>("the header"));
    DI_ASSIGN(num_entries_, Read<uint64_t>("the header"));
    if (num_entries_ > left() / kEntryBytesMin) {
      return Error(
          Format("the header claims {} metadata entries; a file of {} bytes cannot hold "
                 "them",
                 num_entries_, bytes_.size()));
    }
    if (num_tensors_ > left() / kTensorInfoBytesMin) {
      return Error(Format("the header claims {} tensors; a file of {} bytes cannot hold them",
                          num_tensors_, bytes_.size()));
    }
    return {};
  }

  Result<GgufType> ReadType(std::string_view key) {
    DI_ASSIGN(const uint32_t code, Read<uint32_t>("a metadata type"));
    if (code >= kTypeNames.size()) {
      return Error(Format("metadata key {}: unknown value type {}; types are 0 to {}", Shown(key),
                          code, kTypeNames.size() - 1));
    }
    return static_cast<GgufType>(code);
  }

  // Bytes of `count` elements of `type` from here on, checked one by one for strings.
  Result<std::span<const std::byte>> ReadElements(GgufType type, uint64_t count,
                                                  std::string_view key) {
    const size_t begin = position_;
    if (type == GgufType::kString) {
      if (count > left() / sizeof(uint64_t)) {
        return Error(Format("metadata key {}: an array of {} strings does not fit the file",
                            Shown(key), count));
      }
      for (uint64_t i = 0; i < count; ++i) {
        if (left() < sizeof(uint64_t)) return Truncated("a string array");
        const auto bytes = Load<uint64_t>(bytes_.data() + position_);
        position_ += sizeof(uint64_t);
        if (bytes > left()) {
          return Error(Format("metadata key {}: string {} claims {} bytes, {} are left", Shown(key),
                              i, bytes, left()));
        }
        position_ += bytes;
      }
      return bytes_.subspan(begin, position_ - begin);
    }
    const uint64_t element_bytes = kTypeBytes[static_cast<size_t>(type)];
    if (count > left() / element_bytes) {
      return Error(Format("metadata key {}: {} values of {} do not fit the file", Shown(key), count,
                          GgufTypeName(type)));
    }
    position_ += count * element_bytes;
    return bytes_.subspan(begin, position_ - begin);
  }

  Result<GgufValue> ReadValue(std::string_view key) {
    GgufValue value;
    DI_ASSIGN(value.type, ReadType(key));
    if (value.type == GgufType::kString) {
      DI_ASSIGN(const std::string_view text,
                ReadText(std::numeric_limits<uint64_t>::max(), "a metadata string"));
      value.raw = std::as_bytes(std::span<const char>(text));
      return value;
    }
    if (value.type != GgufType::kArray) {
      DI_ASSIGN(value.raw, ReadElements(value.type, 1, key));
      return value;
    }
    DI_ASSIGN(value.element, ReadType(key));
    if (value.element == GgufType::kArray) {
      return Error(Format("metadata key {}: arrays of arrays are not supported", Shown(key)));
    }
    DI_ASSIGN(value.count, Read<uint64_t>("an array length"));
    DI_ASSIGN(value.raw, ReadElements(value.element, value.count, key));
    return value;
  }

  Status Metadata(GgufMetadata* metadata) {
    metadata->entries_.reserve(num_entries_);
    std::unordered_set<std::string_view> seen;
    seen.reserve(num_entries_);
    for (uint64_t i = 0; i < num_entries_; ++i) {
      DI_ASSIGN(const std::string_view key, ReadText(kKeyBytesMax, "a metadata key"));
      if (!seen.insert(key).second) {
        return Error(Format("metadata key {} occurs twice", Shown(key)));
      }
      DI_ASSIGN(const GgufValue value, ReadValue(key));
      metadata->entries_.push_back({key, value});
    }
    auto alignment = metadata->GetInt("general.alignment", 32);
    if (!alignment.ok()) return Error(alignment.status().message());
    const auto value = static_cast<uint64_t>(*alignment);
    if (*alignment <= 0 || value > kAlignmentMax || !std::has_single_bit(value)) {
      return Error(Format("general.alignment is {}; it must be a power of two of at most {}",
                          *alignment, kAlignmentMax));
    }
    alignment_ = value;
    return {};
  }

  Status TensorInfos(TensorIndex* index) {
    std::vector<PendingTensor> pending;
    pending.reserve(num_tensors_);
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      DI_ASSIGN(PendingTensor tensor, ReadTensorInfo());
      pending.push_back(std::move(tensor));
    }
    const uint64_t padding = (alignment_ - position_ % alignment_) % alignment_;
    if (padding > left() && num_tensors_ > 0) return Truncated("the padding before tensor data");
    const uint64_t data_begin = num_tensors_ > 0 ? position_ + padding : bytes_.size();
    return Place(std::move(pending), data_begin, index);
  }

  Result<PendingTensor> ReadTensorInfo() {
    PendingTensor tensor;
    DI_ASSIGN(const std::string_view name, ReadText(kNameBytesMax, "a tensor name"));
    const std::string shown = Shown(name);
    if (name.empty()) return Error("a tensor has an empty name");
    DI_ASSIGN(const uint32_t dimensions, Read<uint32_t>("a tensor description"));
    if (dimensions == 0 || dimensions > kDimensionsMax) {
      return Error(Format("tensor {}: {} dimensions; 1 to {} are allowed", shown, dimensions,
                          kDimensionsMax));
    }
    std::vector<int64_t> shape(dimensions);
    int64_t elements = 1;
    for (uint32_t d = 0; d < dimensions; ++d) {
      DI_ASSIGN(const uint64_t extent, Read<uint64_t>("a tensor description"));
      if (extent == 0 ||
          extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / elements)) {
        return Error(Format("tensor {}: dimension {} is {}; the element count is zero or overflows",
                            shown, d, extent));
      }
      elements *= static_cast<int64_t>(extent);
      shape[dimensions - 1 - d] = static_cast<int64_t>(extent);  // stored innermost first
    }
    DI_ASSIGN(const uint32_t code, Read<uint32_t>("a tensor description"));
    DI_ASSIGN(const DType dtype, TensorType(code, shown));
    DI_ASSIGN(tensor.offset, Read<uint64_t>("a tensor description"));
    const DTypeInfo& info = Info(dtype);
    if (shape.back() % info.block_elements != 0) {
      return Error(
          Format("tensor {}: rows of {} elements are not a multiple of the {} elements of "
                 "a {} block",
                 shown, shape.back(), info.block_elements, info.name));
    }
    const Result<size_t> bytes = ByteSize(dtype, elements);
    if (!bytes.ok()) return Error(Format("tensor {}: {}", shown, bytes.status().message()));
    tensor.view = {std::string(name), dtype, std::move(shape), nullptr, *bytes};
    return tensor;
  }

  Result<DType> TensorType(uint32_t code, std::string_view shown) const {
    std::string supported;
    for (const TensorTypeRow& row : kTensorTypes) {
      if (row.code == code && row.dtype >= 0) return static_cast<DType>(row.dtype);
      if (row.dtype >= 0) supported += Format("{}{}", supported.empty() ? "" : ", ", row.name);
    }
    std::string name = Format("{}", code);
    for (const TensorTypeRow& row : kTensorTypes) {
      if (row.code == code) name = Format("{} ({})", row.name, code);
    }
    return Error(
        Format("tensor {}: type {} is not supported; supported: {}", shown, name, supported));
  }

  Status Place(std::vector<PendingTensor> pending, uint64_t data_begin, TensorIndex* index) {
    const uint64_t data_bytes = bytes_.size() - data_begin;
    std::vector<TensorExtent> extents;
    extents.reserve(pending.size());
    for (size_t i = 0; i < pending.size(); ++i) {
      const TensorView& view = pending[i].view;
      const uint64_t offset = pending[i].offset;
      if (offset % alignment_ != 0) {
        return Error(Format("tensor {}: offset {} is not a multiple of the alignment {}",
                            Shown(view.name), offset, alignment_));
      }
      if (offset > data_bytes || view.bytes > data_bytes - offset) {
        return Error(
            Format("tensor {}: bytes {} to {}+{} of the data are needed, the file has {}; "
                   "it is truncated or damaged",
                   Shown(view.name), offset, offset, view.bytes, data_bytes));
      }
      extents.push_back({offset, offset + view.bytes, i});
    }
    if (const auto clash = FindOverlap(&extents)) {
      return Error(Format("tensors {} and {} overlap", Shown(pending[clash->first].view.name),
                          Shown(pending[clash->second].view.name)));
    }
    for (PendingTensor& tensor : pending) {
      tensor.view.data = bytes_.data() + data_begin + tensor.offset;
      index->Add(std::move(tensor.view));
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  std::string_view file_;
  size_t position_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t num_entries_ = 0;
  uint64_t alignment_ = 32;
};

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  for (const Entry& entry : entries_) {  // tens of entries, looked up once each
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

namespace {

Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) {
  return Invalid(Format("metadata key {} is of type {}{}; {} is needed", key,
                        GgufTypeName(value.type), value.type == GgufType::kArray ? " (array)" : "",
                        wanted))
      .WithParam(std::string(key));
}

bool IsInteger(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool &&
         type != GgufType::kString && type != GgufType::kArray;
}

// u64 beyond int64 saturates: range checks above then refuse it with its key.
int64_t LoadInt(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kU8:
      return Load<uint8_t>(data);
    case GgufType::kI8:
      return Load<int8_t>(data);
    case GgufType::kU16:
      return Load<uint16_t>(data);
    case GgufType::kI16:
      return Load<int16_t>(data);
    case GgufType::kU32:
      return Load<uint32_t>(data);
    case GgufType::kI32:
      return Load<int32_t>(data);
    case GgufType::kI64:
      return Load<int64_t>(data);
    case GgufType::kU64:
      return static_cast<int64_t>(
          std::min<uint64_t>(Load<uint64_t>(data), std::numeric_limits<int64_t>::max()));
    default:
      return 0;
  }
}

double LoadDouble(GgufType type, const std::byte* data) {
  if (type == GgufType::kF32) return Load<float>(data);
  if (type == GgufType::kF64) return Load<double>(data);
  return static_cast<double>(LoadInt(type, data));
}

bool IsNumber(GgufType type) {
  return IsInteger(type) || type == GgufType::kF32 || type == GgufType::kF64;
}

}  // namespace

Result<int64_t> GgufMetadata::GetInt(std::string_view key, int64_t fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return fallback;
  if (!IsInteger(value->type)) return WrongType(key, *value, "an integer");
  return LoadInt(value->type, value->raw.data());
}

Result<double> GgufMetadata::GetDouble(std::string_view key, double fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return fallback;
  if (!IsNumber(value->type)) return WrongType(key, *value, "a number");
  return LoadDouble(value->type, value->raw.data());
}

Result<bool> GgufMetadata::GetBool(std::string_view key, bool fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->type != GgufType::kBool) return WrongType(key, *value, "a bool");
  return Load<uint8_t>(value->raw.data()) != 0;
}

Result<std::string_view> GgufMetadata::GetString(std::string_view key,
                                                 std::string_view fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->type != GgufType::kString) return WrongType(key, *value, "a string");
  return AsText(value->raw);
}

Result<std::vector<std::string_view>> GgufMetadata::GetStrings(std::string_view key) const {
  std::vector<std::string_view> out;
  const GgufValue* value = Find(key);
  if (value == nullptr) return out;
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return WrongType(key, *value, "an array of strings");
  }
  out.reserve(value->count);
  size_t position = 0;
  for (uint64_t i = 0; i < value->count; ++i) {  // lengths were checked by the parser
    const auto bytes = Load<uint64_t>(value->raw.data() + position);
    out.push_back(AsText(value->raw.subspan(position + sizeof(uint64_t), bytes)));
    position += sizeof(uint64_t) + bytes;
  }
  return out;
}

Result<std::vector<int32_t>> GgufMetadata::GetInts(std::string_view key) const {
  std::vector<int32_t> out;
  const GgufValue* value = Find(key);
  if (value == nullptr) return out;
  if (value->type != GgufType::kArray || !IsInteger(value->element)) {
    return WrongType(key, *value, "an array of integers");
  }
  const size_t stride = kTypeBytes[static_cast<size_t>(value->element)];
  out.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const int64_t number = LoadInt(value->element, value->raw.data() + i * stride);
    if (number < std::numeric_limits<int32_t>::min() ||
        number > std::numeric_limits<int32_t>::max()) {
      return Invalid(Format("metadata key {}: element {} is {}, outside 32 bits", key, i, number))
          .WithParam(std::string(key));
    }
    out.push_back(static_cast<int32_t>(number));
  }
  return out;
}

Result<std::vector<float>> GgufMetadata::GetFloats(std::string_view key) const {
  std::vector<float> out;
  const GgufValue* value = Find(key);
  if (value == nullptr) return out;
  if (value->type != GgufType::kArray || !IsNumber(value->element)) {
    return WrongType(key, *value, "an array of numbers");
  }
  const size_t stride = kTypeBytes[static_cast<size_t>(value->element)];
  out.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    out.push_back(static_cast<float>(LoadDouble(value->element, value->raw.data() + i * stride)));
  }
  return out;
}

GgufSplitName ParseGgufSplitName(std::string_view path) {
  // "-DDDDD-of-DDDDD.gguf"
  constexpr size_t kSuffix = 20;
  if (path.size() < kSuffix) return {};
  const std::string_view suffix = path.substr(path.size() - kSuffix);
  const auto digits = [&suffix](size_t begin) {
    int value = 0;
    for (size_t i = begin; i < begin + 5; ++i) {
      if (suffix[i] < '0' || suffix[i] > '9') return -1;
      value = value * 10 + (suffix[i] - '0');
    }
    return value;
  };
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || suffix.substr(15) != ".gguf") return {};
  const int part = digits(1);
  const int parts = digits(10);
  if (part < 1 || parts < part) return {};
  return {std::string(path.substr(0, path.size() - kSuffix)), part, parts};
}

Result<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes,
                                                  std::string_view name) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  DI_TRY(GgufParser(bytes, name).ParseInto(&file->metadata_, &file->index_));
  DI_TRY(file->index_.Seal());
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  const GgufSplitName split = ParseGgufSplitName(path);
  if (split.parts > kPartsMax) {
    return Invalid(Format("{}: {} parts; at most {} are read", path, split.parts, kPartsMax));
  }
  std::unique_ptr<GgufFile> file(new GgufFile());
  const int parts = std::max(split.parts, 1);
  for (int part = 0; part < parts; ++part) {
    const std::string part_path =
        split.parts == 0 ? path
                         : Format("{}-{:05}-of-{:05}.gguf", split.prefix, part + 1, split.parts);
    DI_ASSIGN(MappedFile mapped, MappedFile::Open(part_path));
    GgufMetadata metadata;
    GgufParser parser(mapped.bytes(), part_path);
    DI_TRY(parser.ParseInto(&metadata, &file->index_));
    file->index_.AddFile(std::move(mapped));
    DI_ASSIGN(const int64_t count, metadata.GetInt("split.count", 0));
    DI_ASSIGN(const int64_t number, metadata.GetInt("split.no", 0));
    const int64_t expected_count = split.parts == 0 ? 1 : split.parts;
    if (std::max<int64_t>(count, 1) != expected_count || number != part) {
      return Invalid(
          Format("{}: its metadata says part {} of {}, its name part {} of {}; keep the "
                 "names that the model was published with",
                 part_path, number + 1, std::max<int64_t>(count, 1), part + 1, expected_count));
    }
    if (part == 0) file->metadata_ = std::move(metadata);
  }
  if (Status sealed = file->index_.Seal(); !sealed.ok()) {
    return Invalid(Format("{}: {}", path, sealed.message()));
  }
  DI_ASSIGN(const int64_t total,
            file->metadata_.GetInt("split.tensors.count",
                                   static_cast<int64_t>(file->index_.tensors().size())));
  if (total != static_cast<int64_t>(file->index_.tensors().size())) {
    return Invalid(Format("{}: split.tensors.count is {}, the parts hold {} tensors", path, total,
                          file->index_.tensors().size()));
  }
  return file;
}

}  // namespace deepinfer
