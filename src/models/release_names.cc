#include "models/release_names.h"

#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "models/config_check.h"
#include "models/tensor_census.h"

namespace deepinfer {
namespace {

struct Renaming {
  std::string_view from, to;
};

// Whole parts of a name between dots. Below a layer: its two halves, ...
constexpr std::array kHalves = {
    Renaming{"input_layernorm", "attn_norm"},
    Renaming{"post_attention_layernorm", "ffn_norm"},
    Renaming{"self_attn", "attn"},
    Renaming{"mlp", "ffn"},
};
// ... inside "attn" and "engram", ...
constexpr std::array kAttention = {
    Renaming{"q_a_proj", "wq_a"},   Renaming{"q_a_norm", "q_norm"}, Renaming{"q_b_proj", "wq_b"},
    Renaming{"kv_proj", "wkv"},     Renaming{"o_a_proj", "wo_a"},   Renaming{"o_b_proj", "wo_b"},
    Renaming{"gate_proj", "wgate"}, Renaming{"k_proj", "wk"},       Renaming{"sinks", "attn_sink"},
};
// ... inside "ffn".
constexpr std::array kExperts = {
    Renaming{"gate_proj", "w1"},
    Renaming{"up_proj", "w3"},
    Renaming{"down_proj", "w2"},
    Renaming{"e_score_correction_bias", "bias"},
    Renaming{"e_score_correction_bias_vl", "bias_vl"},
};

template <size_t N>
std::string_view Renamed(const std::array<Renaming, N>& table, std::string_view part) {
  for (const Renaming& row : table) {
    if (row.from == part) return row.to;
  }
  return part;
}

std::vector<std::string_view> Parts(std::string_view name) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t dot = name.find('.');
    parts.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    name.remove_prefix(dot + 1);
  }
}

bool DropPrefix(std::string_view prefix, std::string_view* name) {
  if (!name->starts_with(prefix)) return false;
  name->remove_prefix(prefix.size());
  return true;
}

// What follows "layers.N." or "mtp.N.".
std::string InLayer(const std::vector<std::string_view>& parts) {
  if (parts.size() == 2 && (parts[0] == "attn_hc" || parts[0] == "ffn_hc")) {
    return Format("hc_{}_{}", parts[0].substr(0, parts[0].size() - 3), parts[1]);
  }
  std::string name(Renamed(kHalves, parts[0]));
  const bool experts = name == "ffn";
  const bool attention = name == "attn" || name == "engram";
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (i + 1 == parts.size() && part == "weight_scale_inv") part = "scale";
    if (attention && i >= 2 && parts[i - 1] == "compressor" && part == "kv_norm") part = "norm";
    if (attention) part = Renamed(kAttention, part);
    if (experts && part == "down_proj" && i == 2 && parts.size() == 3) {
      name += ".down_proj";  // of all experts
      continue;
    }
    if (experts) part = Renamed(kExperts, part);
    name += Format(".{}", part);
  }
  return name;
}

// ---- experts stacked in one tensor

// "layers.3.ffn.experts." and which matrices the tensor holds one below the other.
struct Stack {
  std::string prefix;
  std::vector<std::string_view> matrices;
  std::string_view suffix;  // "weight" or "scale"
};

bool IsStack(const std::string& name, Stack* stack) {
  constexpr std::string_view kFolder = ".ffn.experts.";
  const size_t folder = name.find(kFolder);
  if (folder == std::string::npos) return false;
  const std::string_view leaf = std::string_view(name).substr(folder + kFolder.size());
  stack->prefix = name.substr(0, folder + kFolder.size());
  stack->suffix = leaf.ends_with("_scale_inv") ? "scale" : "weight";
  const std::string_view base = leaf.substr(0, leaf.find("_scale_inv"));
  if (base == "gate_up_proj") stack->matrices = {"w1", "w3"};
  if (base == "down_proj") stack->matrices = {"w2"};
  return !stack->matrices.empty();
}

class RenamedFile final : public TensorFile {
 public:
  explicit RenamedFile(std::shared_ptr<TensorFile> file) : file_(std::move(file)) {}

  Status Take() {
    std::unordered_map<std::string, std::string> stored;  // release name -> name in the file
    for (const TensorView& view : file_->tensors()) {
      TensorView renamed = view;
      renamed.name = ReleaseName(view.name);
      const size_t first = views_.size();
      if (Stack stack; IsStack(renamed.name, &stack)) {
        DI_TRY(Split(view, stack));
      } else {
        views_.push_back(std::move(renamed));
      }
      for (size_t i = first; i < views_.size(); ++i) {
        const auto [at, is_new] = stored.emplace(views_[i].name, view.name);
        if (is_new) continue;
        return Invalid(Format("{} and {} are both {} of the release; one of them is needed",
                              at->second, view.name, views_[i].name))
            .WithParam(view.name);
      }
    }
    for (size_t i = 0; i < views_.size(); ++i) by_name_.emplace(views_[i].name, i);
    return {};
  }

  const TensorView* Find(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &views_[found->second];
  }
  const std::vector<TensorView>& tensors() const override { return views_; }
  void Drop(const TensorView& view) const override { file_->Drop(view); }
  bool Holds(const TensorView& view) const override { return file_->Holds(view); }
  FilePlace PlaceOf(const std::byte* data) const override { return file_->PlaceOf(data); }
  void Prefetch(const TensorView& view) const override { file_->Prefetch(view); }
  size_t file_bytes() const override { return file_->file_bytes(); }

 private:
  // [experts, matrices * rows, cols] into views of the matrices.
  Status Split(const TensorView& view, const Stack& stack) {
    const auto count = static_cast<int64_t>(stack.matrices.size());
    const int64_t experts = view.dim(0);
    const bool fits = view.shape.size() == 3 && experts >= 1 && experts <= kExpertsMax &&
                      view.shape[1] >= 1 && view.shape[1] % count == 0 &&
                      view.bytes % static_cast<size_t>(experts * count) == 0;
    if (!fits) {
      return Invalid(Format("{} is {}; stacked experts are [1 to {}, a multiple of {}, columns]",
                            view.name, ShapeText(view.shape), kExpertsMax, count))
          .WithParam(view.name);
    }
    const size_t bytes = view.bytes / static_cast<size_t>(experts * count);
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t m = 0; m < count; ++m) {
        TensorView part = view;
        part.name = Format("{}{}.{}.{}", stack.prefix, e, stack.matrices[static_cast<size_t>(m)],
                           stack.suffix);
        part.shape = {view.shape[1] / count, view.shape[2]};
        part.data = view.data + static_cast<size_t>(e * count + m) * bytes;
        part.bytes = bytes;
        views_.push_back(std::move(part));
      }
    }
    return {};
  }

  std::shared_ptr<TensorFile> file_;  // whoever reads rows of it later holds this one
  std::vector<TensorView> views_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace

std::string ReleaseName(std::string_view name) {
  while (DropPrefix("model.", &name) || DropPrefix("language_model.", &name)) {
  }
  if (name == "embed_tokens.weight") return "embed.weight";
  if (name == "lm_head.weight") return "head.weight";
  if (DropPrefix("vision_tower.", &name)) return Format("vision.{}", name);
  const std::vector<std::string_view> parts = Parts(name);
  const bool in_layer = parts.size() > 2 && (parts[0] == "layers" || parts[0] == "mtp");
  if (!in_layer) return std::string(name);
  const std::string rest = InLayer({parts.begin() + 2, parts.end()});
  return Format("{}.{}.{}", parts[0], parts[1], rest);
}

Result<std::shared_ptr<TensorFile>> WithReleaseNames(std::shared_ptr<TensorFile> file) {
  bool differs = false;
  for (const TensorView& view : file->tensors()) {
    Stack stack;
    differs = differs || ReleaseName(view.name) != view.name || IsStack(view.name, &stack);
  }
  if (!differs) return file;
  auto renamed = std::make_shared<RenamedFile>(std::move(file));
  DI_TRY(renamed->Take());
  return std::shared_ptr<TensorFile>(std::move(renamed));
}

}  // namespace deepinfer
