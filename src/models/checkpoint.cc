#include "models/checkpoint.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/mapped_file.h"
#include "models/release_names.h"
#include "models/tensor_census.h"
#include "models/tokenizer_source.h"
#include "tensor/dequantize.h"
#include "tensor/gguf.h"
#include "tensor/safetensors.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSmallFileMax = size_t{64} << 20;  // JSON and template files

bool IsWeightType(DType dtype) {
  return dtype != DType::kI8 && dtype != DType::kU8 && dtype != DType::kI32 && dtype != DType::kI64;
}

Result<std::string> ReadSmallFile(const std::string& path) {
  DI_ASSIGN(const MappedFile file, MappedFile::Open(path));
  if (file.size() > kSmallFileMax) {
    return Invalid(Format("{}: {} bytes; at most {} are read", path, file.size(), kSmallFileMax));
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.size());
}

Result<Json> ReadJsonFile(const std::string& path) {
  DI_ASSIGN(const std::string text, ReadSmallFile(path));
  Result<Json> json = Json::Parse(text);
  if (!json.ok()) return Invalid(Format("{}: {}", path, json.status().message()));
  return json;
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Status Prefixed(const std::string& path, const Status& status) {
  return Status(status.code(), Format("{}: {}", path, status.message())).WithParam(status.param());
}

// "models/SmolLM2-135M.Q4_1.gguf" -> "SmolLM2-135M.Q4_1"; of safetensors the directory's name.
std::string NameOfPath(const std::string& path) {
  std::error_code ignored;
  fs::path p = fs::absolute(path, ignored).lexically_normal();
  if (!p.has_filename() || p.extension() == ".safetensors") p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

}  // namespace

struct Checkpoint::Impl {
  std::string path;
  CheckpointFormat format = CheckpointFormat::kGguf;
  ModelConfig config;
  Json config_json;
  std::string directory;
  std::shared_ptr<TensorFile> file;  // shared with models that keep tables in it
  const GgufFile* gguf = nullptr;    // file, when it is one
  std::array<const TensorView*, kNumTensorRoles> whole{};
  std::vector<std::array<const TensorView*, kNumTensorRoles>> layers;
  std::map<std::pair<int, int>, std::vector<TensorView>> experts;  // (role, layer)
  std::optional<TokenizerSpec> tokenizer;
  std::string chat_template;
  int64_t parameters = 0;
  DType main_dtype = DType::kF32;

  Status OpenGguf(const std::string& gguf_path);
  Status OpenSafetensors(const std::string& directory, const std::string& weights);
  Status ReadTokenizerFiles(const std::string& from);
  Status GatherGgufFacts(const GgufMetadata& metadata, GgufTensorFacts* facts,
                         std::vector<float>* factors) const;
  Status BindTensors();
  void BindExperts(TensorRole role, int layer, std::unordered_set<std::string_view>* used,
                   TensorProblems* problems);
  // A tensor that holds all experts of `role`, maybe fused with another role: the rows from
  // row_begin of each expert.
  bool BindStacked(const std::string& name, TensorRole role, int layer, int64_t rows_per_expert,
                   int64_t row_begin, std::unordered_set<std::string_view>* used,
                   TensorProblems* problems);
  const TensorView* Checked(const std::string& name, const std::vector<int64_t>& shape,
                            std::unordered_set<std::string_view>* used,
                            TensorProblems* problems) const;
  void ReportUnused(const std::unordered_set<std::string_view>& used,
                    TensorProblems* problems) const;
  void Measure();
};

const TensorView* Checkpoint::Impl::Checked(const std::string& name,
                                            const std::vector<int64_t>& shape,
                                            std::unordered_set<std::string_view>* used,
                                            TensorProblems* problems) const {
  const TensorView* view = file->Find(name);
  if (view == nullptr) {
    problems->Add(Format("{} {} is missing", name, ShapeText(shape)));
    return nullptr;
  }
  used->insert(view->name);
  if (view->shape != shape) {
    problems->Add(Format("{} is {}, expected {}", name, ShapeText(view->shape), ShapeText(shape)));
    return nullptr;
  }
  if (!IsWeightType(view->dtype)) {
    problems->Add(Format("{} has type {}, which holds no weights", name, Info(view->dtype).name));
    return nullptr;
  }
  return view;
}

bool Checkpoint::Impl::BindStacked(const std::string& name, TensorRole role, int layer,
                                   int64_t rows_per_expert, int64_t row_begin,
                                   std::unordered_set<std::string_view>* used,
                                   TensorProblems* problems) {
  if (file->Find(name) == nullptr) return false;
  const std::vector<int64_t> shape = ExpectedShape(config, role, layer);
  const TensorView* stacked =
      Checked(name, {config.moe.experts, rows_per_expert, shape[1]}, used, problems);
  if (stacked == nullptr) return true;  // reported
  const size_t row_bytes =
      stacked->bytes / static_cast<size_t>(config.moe.experts * rows_per_expert);
  std::vector<TensorView>& views = experts[{static_cast<int>(role), layer}];
  views.reserve(static_cast<size_t>(config.moe.experts));
  for (int e = 0; e < config.moe.experts; ++e) {
    TensorView view{Format("{} (expert {})", name, e), stacked->dtype, shape, nullptr, 0};
    view.data = stacked->data + static_cast<size_t>(e * rows_per_expert + row_begin) * row_bytes;
    view.bytes = static_cast<size_t>(shape[0]) * row_bytes;
    views.push_back(std::move(view));
  }
  return true;
}

void Checkpoint::Impl::BindExperts(TensorRole role, int layer,
                                   std::unordered_set<std::string_view>* used,
                                   TensorProblems* problems) {
  const std::vector<int64_t> shape = ExpectedShape(config, role, layer);
  const bool gate_or_up = role != TensorRole::kExpertDown;
  const bool is_gguf = format == CheckpointFormat::kGguf;
  const std::string prefix =
      is_gguf ? Format("blk.{}.", layer) : Format("model.layers.{}.mlp.experts.", layer);
  const std::string stacked_name =
      is_gguf ? TensorName(format, role, layer) : prefix + "down_proj";  // HF fuses the other two
  if ((is_gguf || !gate_or_up) &&
      BindStacked(stacked_name, role, layer, shape[0], 0, used, problems)) {
    return;
  }
  const std::string fused = prefix + (is_gguf ? "ffn_gate_up_exps.weight" : "gate_up_proj");
  const int64_t row_begin = role == TensorRole::kExpertUp ? shape[0] : 0;
  if (gate_or_up && BindStacked(fused, role, layer, 2 * shape[0], row_begin, used, problems)) {
    return;
  }
  if (is_gguf) {
    problems->Add(
        Format("{} [{}, {}, {}] is missing", stacked_name, config.moe.experts, shape[0], shape[1]));
    return;
  }
  std::vector<TensorView>& views = experts[{static_cast<int>(role), layer}];
  for (int e = 0; e < config.moe.experts; ++e) {
    const TensorView* view = Checked(TensorName(format, role, layer, e), shape, used, problems);
    if (view == nullptr) continue;
    if (!views.empty() && views.front().dtype != view->dtype) {
      problems->Add(Format("{} has type {}, expert 0 has {}", view->name, Info(view->dtype).name,
                           Info(views.front().dtype).name));
    }
    views.push_back(*view);
  }
}

void Checkpoint::Impl::ReportUnused(const std::unordered_set<std::string_view>& used,
                                    TensorProblems* problems) const {
  for (const TensorView& view : file->tensors()) {
    if (used.contains(view.name)) continue;
    // Buffers that old exporters saved, and the copy of a tied head: never read.
    const std::string_view name = view.name;
    if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn_rot_embd.weight")) continue;
    if (name == "rope_freqs.weight" || name == "lm_head.weight") continue;
    problems->Add(Format("{} {} does not belong to architecture {}", name, ShapeText(view.shape),
                         config.architecture));
  }
}

Status Checkpoint::Impl::BindTensors() {
  TensorProblems problems;
  std::unordered_set<std::string_view> used;
  layers.resize(static_cast<size_t>(config.layers));
  for (int r = 0; r < kNumTensorRoles; ++r) {
    const auto role = static_cast<TensorRole>(r);
    const int count = IsLayerRole(role) ? config.layers : 1;
    for (int layer = 0; layer < count; ++layer) {
      const std::vector<int64_t> shape = ExpectedShape(config, role, layer);
      if (shape.empty()) continue;
      if (IsExpertRole(role)) {
        BindExperts(role, layer, &used, &problems);
        continue;
      }
      const TensorView* view = Checked(TensorName(format, role, layer), shape, &used, &problems);
      auto& slots = IsLayerRole(role) ? layers[static_cast<size_t>(layer)] : whole;
      slots[static_cast<size_t>(r)] = view;
    }
  }
  ReportUnused(used, &problems);
  DI_TRY(problems.ToStatus(path));
  Measure();
  return {};
}

void Checkpoint::Impl::Measure() {
  std::map<DType, size_t> bytes;
  for (const TensorView& view : file->tensors()) {
    if (!IsWeightType(view.dtype)) continue;
    parameters += view.elements();
    bytes[view.dtype] += view.bytes;
  }
  size_t most = 0;
  for (const auto& [dtype, count] : bytes) {
    if (count > most) {
      most = count;
      main_dtype = dtype;
    }
  }
}

Status Checkpoint::Impl::GatherGgufFacts(const GgufMetadata& metadata, GgufTensorFacts* facts,
                                         std::vector<float>* factors) const {
  const auto has = [this](TensorRole role, int layer) {
    return file->Find(TensorName(CheckpointFormat::kGguf, role, layer)) != nullptr;
  };
  const std::string embedding = TensorName(CheckpointFormat::kGguf, TensorRole::kTokenEmbedding, 0);
  const TensorView* tokens = file->Find(embedding);
  if (tokens == nullptr || tokens->shape.size() != 2) {
    return Invalid(Format("tensor {} is missing or not a matrix", embedding));
  }
  facts->vocab = tokens->shape[0];
  facts->has_head = has(TensorRole::kOutput, 0);
  facts->has_qkv_bias = has(TensorRole::kQBias, 0);
  facts->has_output_bias = has(TensorRole::kOBias, 0);
  facts->has_mlp_bias = has(TensorRole::kDownBias, 0);
  DI_ASSIGN(const int num_layers, GgufLayerCount(metadata));
  for (int layer = 0; layer < num_layers; ++layer) {
    facts->sparse_layer.push_back(has(TensorRole::kRouter, layer) ? 1 : 0);
  }
  const TensorView* freqs = file->Find("rope_freqs.weight");
  if (freqs != nullptr) {
    DI_ASSIGN(*factors, DequantizeTensor(*freqs));
    facts->rope_factors = *factors;
  }
  return {};
}

Status Checkpoint::Impl::OpenGguf(const std::string& gguf_path) {
  format = CheckpointFormat::kGguf;
  DI_ASSIGN(std::unique_ptr<GgufFile> opened, GgufFile::Open(gguf_path));
  gguf = opened.get();
  file = std::move(opened);
  const GgufMetadata& metadata = gguf->metadata();
  GgufTensorFacts facts;
  std::vector<float> factors;
  // The architecture comes first: tensors of an unknown one would only confuse.
  if (const Result<int> known = GgufLayerCount(metadata); !known.ok()) {
    return Prefixed(gguf_path, known.status());
  }
  if (Status s = GatherGgufFacts(metadata, &facts, &factors); !s.ok()) {
    return Prefixed(gguf_path, s);
  }
  Result<ModelConfig> read = ConfigFromGguf(metadata, facts);
  if (!read.ok()) return Prefixed(gguf_path, read.status());
  config = *std::move(read);
  DI_TRY(BindTensors());
  if (HasGgufTokenizer(metadata)) {
    Result<TokenizerSpec> spec = TokenizerFromGguf(metadata);
    if (!spec.ok()) return Prefixed(gguf_path, spec.status());
    tokenizer = *std::move(spec);
  }
  const auto source = metadata.GetString("tokenizer.chat_template", "");
  if (!source.ok()) return Prefixed(gguf_path, source.status());
  chat_template = std::string(*source);
  return {};
}

Status Checkpoint::Impl::ReadTokenizerFiles(const std::string& from) {
  const std::string config_path = from + "/tokenizer_config.json";
  Json tokenizer_config = Json::Object();
  if (Exists(config_path)) {
    DI_ASSIGN(tokenizer_config, ReadJsonFile(config_path));
    Result<std::string> source = ChatTemplateOf(tokenizer_config);
    if (!source.ok()) return Prefixed(config_path, source.status());
    chat_template = *std::move(source);
  }
  const std::string template_path = from + "/chat_template.jinja";
  if (Exists(template_path)) {
    DI_ASSIGN(chat_template, ReadSmallFile(template_path));
  }
  const std::string tokenizer_path = from + "/tokenizer.json";
  if (!Exists(tokenizer_path)) return {};
  DI_ASSIGN(const std::string text, ReadSmallFile(tokenizer_path));
  Result<TokenizerSpec> spec = ParseTokenizerJson(text);
  if (!spec.ok()) return Prefixed(tokenizer_path, spec.status());
  if (Status s = ApplyTokenizerConfig(tokenizer_config, &*spec); !s.ok()) {
    return Prefixed(config_path, s);
  }
  tokenizer = *std::move(spec);
  return {};
}

Status Checkpoint::Impl::OpenSafetensors(const std::string& directory_path,
                                         const std::string& weights) {
  format = CheckpointFormat::kSafetensors;
  const std::string config_path = directory_path + "/config.json";
  directory = directory_path;
  DI_ASSIGN(config_json, ReadJsonFile(config_path));
  std::optional<Json> generation;
  const std::string generation_path = directory_path + "/generation_config.json";
  if (Exists(generation_path)) {
    DI_ASSIGN(generation, ReadJsonFile(generation_path));
  }
  Result<ModelConfig> read =
      ConfigFromHf(config_json, generation.has_value() ? &*generation : nullptr);
  if (!read.ok()) return Prefixed(config_path, read.status());
  config = *std::move(read);
  Result<std::unique_ptr<SafetensorsFile>> opened =
      weights.empty() ? SafetensorsFile::OpenDirectory(directory_path)
                      : SafetensorsFile::Open(weights);
  if (!opened.ok()) return opened.status();
  file = std::move(opened).value();
  if (config.architecture == "deepseek_v41") {
    DI_ASSIGN(file, WithReleaseNames(std::move(file)));
  }
  if (config.family == ModelFamily::kOwn) {
    Measure();
  } else {
    DI_TRY(BindTensors());
  }
  return ReadTokenizerFiles(directory_path);
}

namespace {

// The one GGUF model of a directory: a single file or the first part of a split one.
Result<std::string> FindGguf(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".gguf") continue;
    const std::string path = it->path().string();
    if (ParseGgufSplitName(path).part > 1) continue;
    found.push_back(path);
  }
  if (error) return NotFound(Format("{}: {}", directory, error.message())).WithParam(directory);
  std::sort(found.begin(), found.end());
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    return NotFound(
               Format("{}: neither config.json nor a .gguf file is in this directory", directory))
        .WithParam(directory);
  }
  return Invalid(Format("{}: {} models ({}, {}, ...); name one file", directory, found.size(),
                        fs::path(found[0]).filename().string(),
                        fs::path(found[1]).filename().string()))
      .WithParam(directory);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return NotFound(Format("{}: no such file or directory", path)).WithParam(path);
  }
  const std::string extension = fs::path(path).extension().string();
  if (fs::is_directory(status)) {
    if (Exists(path + "/config.json")) {
      DI_TRY(impl->OpenSafetensors(path, ""));
    } else {
      DI_ASSIGN(const std::string gguf_path, FindGguf(path));
      DI_TRY(impl->OpenGguf(gguf_path));
    }
  } else if (extension == ".gguf") {
    DI_TRY(impl->OpenGguf(path));
  } else if (extension == ".safetensors") {
    const fs::path parent = fs::path(path).parent_path();
    DI_TRY(impl->OpenSafetensors(parent.empty() ? "." : parent.string(), path));
  } else {
    return Invalid(Format("{}: a directory, a .gguf or a .safetensors file is needed", path))
        .WithParam(path);
  }
  if (impl->config.name.empty()) impl->config.name = NameOfPath(path);
  const size_t num_tokens = impl->tokenizer.has_value() ? impl->tokenizer->vocab.size() : 0;
  if (num_tokens > static_cast<size_t>(impl->config.vocab)) {
    return Invalid(Format("{}: the tokenizer has {} tokens, the embedding {} rows", path,
                          num_tokens, impl->config.vocab))
        .WithParam(path);
  }
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(impl)));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

const ModelConfig& Checkpoint::config() const { return impl_->config; }
const Json& Checkpoint::config_json() const { return impl_->config_json; }
const std::string& Checkpoint::directory() const { return impl_->directory; }
const TensorFile& Checkpoint::file() const { return *impl_->file; }
std::shared_ptr<const TensorFile> Checkpoint::shared_file() const { return impl_->file; }
CheckpointFormat Checkpoint::format() const { return impl_->format; }
const std::string& Checkpoint::path() const { return impl_->path; }
const GgufMetadata* Checkpoint::gguf_metadata() const {
  return impl_->gguf == nullptr ? nullptr : &impl_->gguf->metadata();
}

const TensorView* Checkpoint::Find(TensorRole role, int layer) const {
  DI_CHECK(!IsExpertRole(role));
  if (config().family == ModelFamily::kOwn) return nullptr;
  if (!IsLayerRole(role)) return impl_->whole[static_cast<size_t>(role)];
  return impl_->layers[static_cast<size_t>(layer)][static_cast<size_t>(role)];
}

std::span<const TensorView> Checkpoint::Experts(TensorRole role, int layer) const {
  const auto found = impl_->experts.find({static_cast<int>(role), layer});
  if (found == impl_->experts.end()) return {};
  return found->second;
}

const std::optional<TokenizerSpec>& Checkpoint::tokenizer() const { return impl_->tokenizer; }

Result<TokenizerSpec> Checkpoint::TakeTokenizer() {
  if (!impl_->tokenizer.has_value()) {
    return NotFound(Format("{}: the checkpoint has no tokenizer", impl_->path));
  }
  TokenizerSpec spec = *std::move(impl_->tokenizer);
  impl_->tokenizer.reset();
  return spec;
}

const std::string& Checkpoint::chat_template() const { return impl_->chat_template; }
int64_t Checkpoint::parameters() const { return impl_->parameters; }
DType Checkpoint::main_dtype() const { return impl_->main_dtype; }

}  // namespace deepinfer
