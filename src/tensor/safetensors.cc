#include "tensor/safetensors.h"

#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // as the reference reader
constexpr size_t kDimensionsMax = 8;
constexpr size_t kShardsMax = 10'000;

Status Error(std::string_view file, std::string message) {
  return Invalid(Format("{}: {}", file, message)).WithParam(std::string(file));
}

Result<TensorView> ParseEntry(const std::string& name, const Json& entry, uint64_t data_bytes,
                              TensorExtent* extent) {
  if (!entry.is_object()) return Invalid(Format("tensor {}: not an object", name));
  DI_ASSIGN(const std::string type, entry.GetString("dtype", ""));
  const Result<DType> dtype = ParseDType(type);
  if (!dtype.ok() || Info(*dtype).block_elements != 1 || HasScaleTensor(*dtype)) {
    return Invalid(
        Format("tensor {}: dtype \"{}\" is not supported; supported: F32, F16, BF16, I8, "
               "U8, I32, I64, F8_E4M3, F8_E8M0",
               name, type));
  }
  const Json* shape = entry.Find("shape");
  if (shape == nullptr || !shape->is_array() || shape->items().size() > kDimensionsMax) {
    return Invalid(
        Format("tensor {}: shape must be an array of at most {} numbers", name, kDimensionsMax));
  }
  TensorView view{name, *dtype, {}, nullptr, 0};
  int64_t elements = 1;
  for (const Json& item : shape->items()) {
    const Result<int64_t> extent_value = item.AsInt();
    if (!extent_value.ok() || *extent_value < 0) {
      return Invalid(Format("tensor {}: shape entry {} is not a size", name, item.Dump()));
    }
    if (*extent_value > 0 && elements > std::numeric_limits<int64_t>::max() / *extent_value) {
      return Invalid(
          Format("tensor {}: the element count of shape {} overflows", name, shape->Dump()));
    }
    elements *= *extent_value;
    view.shape.push_back(*extent_value);
  }
  DI_ASSIGN(view.bytes, ByteSize(*dtype, elements));
  const Json* offsets = entry.Find("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->items().size() != 2) {
    return Invalid(Format("tensor {}: data_offsets must be [begin, end]", name));
  }
  const Result<int64_t> begin = offsets->items()[0].AsInt();
  const Result<int64_t> end = offsets->items()[1].AsInt();
  if (!begin.ok() || !end.ok() || *begin < 0 || *end < *begin ||
      static_cast<uint64_t>(*end) > data_bytes) {
    return Invalid(
        Format("tensor {}: data_offsets {} are not a range within the {} data bytes of "
               "the file",
               name, offsets->Dump(), data_bytes));
  }
  extent->begin = static_cast<uint64_t>(*begin);
  extent->end = static_cast<uint64_t>(*end);
  if (extent->end - extent->begin != view.bytes) {
    return Invalid(Format("tensor {}: {} {} needs {} bytes, data_offsets give {}", name, type,
                          shape->Dump(), view.bytes, extent->end - extent->begin));
  }
  return view;
}

// The tensors of one file. The format demands that they cover its data without gaps.
Result<std::vector<TensorView>> ParseFile(std::span<const std::byte> bytes, std::string_view file) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) {
    return Error(file, Format("{} bytes are too few for a safetensors file", bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const uint64_t left = bytes.size() - sizeof header_bytes;
  if (header_bytes > kHeaderBytesMax) {
    return Error(file, Format("the header claims {} bytes; at most {} are allowed (not a "
                              "safetensors file?)",
                              header_bytes, kHeaderBytesMax));
  }
  if (header_bytes > left) {
    return Error(file, Format("the header claims {} bytes, the file has {} left; it is truncated",
                              header_bytes, left));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes,
                              header_bytes);
  if (text.empty() || text.front() != '{') return Error(file, "the header is not a JSON object");
  JsonLimits limits;
  limits.bytes_max = kHeaderBytesMax;
  limits.depth_max = 8;
  const Result<Json> header = Json::Parse(text, limits);
  if (!header.ok()) return Error(file, Format("header: {}", header.status().message()));

  const std::span<const std::byte> data = bytes.subspan(sizeof header_bytes + header_bytes);
  std::vector<TensorView> views;
  std::vector<TensorExtent> extents;
  views.reserve(header->members().size());
  extents.reserve(header->members().size());
  for (const auto& [name, entry] : header->members()) {
    if (name == "__metadata__") continue;
    TensorExtent extent;
    Result<TensorView> view = ParseEntry(name, entry, data.size(), &extent);
    if (!view.ok()) return Error(file, view.status().message());
    view->data = data.data() + extent.begin;
    extent.tensor = views.size();
    extents.push_back(extent);
    views.push_back(*std::move(view));
  }
  if (const auto clash = FindOverlap(&extents)) {
    return Error(file, Format("tensors {} and {} overlap", views[clash->first].name,
                              views[clash->second].name));
  }
  uint64_t covered = 0;  // FindOverlap sorted the extents
  for (const TensorExtent& extent : extents) {
    if (extent.begin != covered) {
      return Error(file, Format("data bytes {} to {} belong to no tensor; the file is damaged",
                                covered, extent.begin));
    }
    covered = extent.end;
  }
  if (covered != data.size()) {
    return Error(file, Format("data bytes {} to {} belong to no tensor; the file is damaged",
                              covered, data.size()));
  }
  return views;
}

// A shard is named by a plain file name: nothing that could leave the directory.
bool IsPlainFileName(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name.front() != '.' &&
         name.find('/') == std::string_view::npos && name.find('\\') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                                                std::string_view name) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  DI_ASSIGN(std::vector<TensorView> views, ParseFile(bytes, name));
  for (TensorView& view : views) file->index_.Add(std::move(view));
  DI_TRY(file->index_.Seal());
  return file;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  DI_ASSIGN(MappedFile mapped, MappedFile::Open(path));
  DI_ASSIGN(std::unique_ptr<SafetensorsFile> file, Parse(mapped.bytes(), path));
  file->index_.AddFile(std::move(mapped));
  return file;
}

Status SafetensorsFile::OpenSharded(const std::string& directory, const std::string& index_path) {
  DI_ASSIGN(const MappedFile text, MappedFile::Open(index_path));
  JsonLimits limits;
  limits.bytes_max = kHeaderBytesMax;
  const Result<Json> index =
      Json::Parse({reinterpret_cast<const char*>(text.bytes().data()), text.size()}, limits);
  if (!index.ok()) return Error(index_path, index.status().message());
  const Json* weight_map = index->Find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->members().empty()) {
    return Error(index_path, "weight_map is missing, empty or not an object");
  }
  std::map<std::string_view, std::vector<std::string_view>> shards;
  for (const auto& [tensor, file] : weight_map->members()) {
    if (!file.is_string() || !IsPlainFileName(file.string())) {
      return Error(index_path, Format("weight_map entry {} is {}; a plain name of a .safetensors "
                                      "file in the same directory is needed",
                                      tensor, file.Dump()));
    }
    shards[file.string()].push_back(tensor);
  }
  if (shards.size() > kShardsMax) {
    return Error(index_path, Format("{} files; at most {} are read", shards.size(), kShardsMax));
  }
  for (const auto& [shard, names] : shards) {
    const std::string path = Format("{}/{}", directory, shard);
    DI_ASSIGN(MappedFile mapped, MappedFile::Open(path));
    DI_ASSIGN(std::vector<TensorView> views, ParseFile(mapped.bytes(), path));
    std::unordered_map<std::string_view, TensorView*> in_shard;
    for (TensorView& view : views) in_shard.emplace(view.name, &view);
    for (const std::string_view name : names) {
      const auto found = in_shard.find(name);
      if (found == in_shard.end()) {
        return Error(index_path,
                     Format("tensor {} is said to be in {}, which does not have it", name, shard));
      }
      index_.Add(*found->second);
    }
    index_.AddFile(std::move(mapped));
  }
  return index_.Seal();
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::OpenDirectory(
    const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string index_path = directory + "/model.safetensors.index.json";
  if (fs::exists(index_path, error)) {
    std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
    DI_TRY(file->OpenSharded(directory, index_path));
    return file;
  }
  const std::string single = directory + "/model.safetensors";
  if (fs::exists(single, error)) return Open(single);
  std::vector<std::string> found;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") found.push_back(it->path().string());
  }
  if (found.size() == 1) return Open(found.front());
  return NotFound(Format("{}: {} .safetensors files and no model.safetensors.index.json; a "
                         "directory needs model.safetensors, or an index of its parts",
                         directory, found.empty() ? std::string("no") : Format("{}", found.size())))
      .WithParam(directory);
}

}  // namespace deepinfer
