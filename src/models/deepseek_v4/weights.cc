#include "models/deepseek_v4/weights.h"

#include <utility>

#include "base/format.h"
#include "models/deepseek_v3/family_binder.h"

namespace deepinfer {
namespace {

using Past = DeepseekV4Config::Past;

// Where the two layouts differ.
struct Names {
  std::string prefix;     // of layers and norm
  std::string embedding;  // without ".weight"
  std::string kv_norm;    // in a layer
  std::string head_hyper;
};

Names NamesOf(const FamilyBinder& binder) {
  if (binder.Has("embed.weight")) return {"", "embed", "attn.kv_norm.weight", "hc_head_"};
  return {"model.", "model.embed_tokens", "attn.norm.weight", "model.hc_head.hc_"};
}

class LayerBinder {
 public:
  LayerBinder(const DeepseekV4Config& config, const Names& names, FamilyBinder* binder,
              std::string prefix, DeepseekV4Config::Layer kind)
      : c_(config), names_(names), b_(binder), prefix_(std::move(prefix)), kind_(kind) {}

  void Bind(DeepseekV4Layer* out) {
    out->attn_hyper = Hyper(prefix_ + "hc_attn_", c_.streams * (c_.streams + 2), 3);
    BindAttention(out);
    out->ffn_hyper = Hyper(prefix_ + "hc_ffn_", c_.streams * (c_.streams + 2), 3);
    BindExperts(out);
  }

  HyperWeights Hyper(const std::string& at, int64_t coefficients, int64_t scales) {
    HyperWeights out;
    out.fn = b_->Float32Matrix(at + "fn", coefficients, int64_t{c_.streams} * c_.hidden);
    out.base = b_->Vector(at + "base", coefficients);
    out.scale = b_->Vector(at + "scale", scales);
    return out;
  }

 private:
  void BindAttention(DeepseekV4Layer* out) {
    const std::string at = prefix_ + "attn.";
    out->attn_norm = b_->Vector(prefix_ + "attn_norm.weight", c_.hidden);
    out->q_a = b_->Matrix(at + "wq_a", c_.q_lora, c_.hidden);
    out->kv = b_->Matrix(at + "wkv", c_.head_dim, c_.hidden);
    if (kind_.past != Past::kNone) {
      out->entries = Compressor(at + "compressor.", c_.head_dim);
    }
    if (kind_.past == Past::kChosen) {
      out->keys = Compressor(at + "indexer.compressor.", c_.index_dim);
      out->index_weights = b_->Matrix(at + "indexer.weights_proj", c_.index_heads, c_.hidden);
    }
    out->q_norm = b_->Vector(at + "q_norm.weight", c_.q_lora);
    out->q_b = b_->Matrix(at + "wq_b", int64_t{c_.heads} * c_.head_dim, c_.q_lora);
    if (kind_.past == Past::kChosen) {
      out->index_q =
          b_->Matrix(at + "indexer.wq_b", int64_t{c_.index_heads} * c_.index_dim, c_.q_lora);
    }
    out->kv_norm = b_->Vector(prefix_ + names_.kv_norm, c_.head_dim);
    out->sinks = b_->Vector(at + "attn_sink", c_.heads);
    out->o_a = Grouped(at + "wo_a", int64_t{c_.heads} * c_.head_dim / c_.output_groups);
    out->o_b = b_->Matrix(at + "wo_b", c_.hidden, int64_t{c_.output_groups} * c_.output_lora);
  }

  CompressorWeights Compressor(const std::string& at, int64_t dim) {
    const int64_t width = kind_.past == Past::kChosen ? 2 * dim : dim;
    CompressorWeights out;
    out.kv = b_->Matrix(at + "wkv", width, c_.hidden);
    out.gate = b_->Matrix(at + "wgate", width, c_.hidden);
    out.bias = b_->Table(at + "ape", {kind_.ratio, width});
    out.norm = b_->Vector(at + "norm.weight", dim);
    return out;
  }

  // [groups * out, in] as one matrix per group.
  std::unique_ptr<Weight> Grouped(const std::string& base, int64_t cols) {
    const std::optional<TensorView> whole =
        b_->View(base, int64_t{c_.output_groups} * c_.output_lora, cols);
    if (!whole.has_value()) return nullptr;
    return b_->KeepRows(*whole, c_.output_groups, c_.output_lora);
  }

  void BindExperts(DeepseekV4Layer* out) {
    const std::string at = prefix_ + "ffn.";
    out->ffn_norm = b_->Vector(prefix_ + "ffn_norm.weight", c_.hidden);
    out->router = b_->Float32Matrix(at + "gate.weight", c_.experts, c_.hidden);
    if (kind_.hashed) {
      BindTokenExperts(at + "gate.tid2eid", out);
    } else {
      out->router_bias = b_->Vector(at + "gate.bias", c_.experts);
    }
    const auto bases = [&](const char* matrix) {
      std::vector<std::string> names;
      for (int e = 0; e < c_.experts; ++e)
        names.push_back(Format("{}experts.{}.{}", at, e, matrix));
      return names;
    };
    out->expert_gate = b_->Experts(bases("w1"), c_.expert_intermediate, c_.hidden);
    out->expert_up = b_->Experts(bases("w3"), c_.expert_intermediate, c_.hidden);
    out->expert_down = b_->Experts(bases("w2"), c_.hidden, c_.expert_intermediate);
    if (c_.shared_intermediate == 0) return;
    out->shared_gate = b_->Matrix(at + "shared_experts.w1", c_.shared_intermediate, c_.hidden);
    out->shared_up = b_->Matrix(at + "shared_experts.w3", c_.shared_intermediate, c_.hidden);
    out->shared_down = b_->Matrix(at + "shared_experts.w2", c_.hidden, c_.shared_intermediate);
  }

  void BindTokenExperts(const std::string& name, DeepseekV4Layer* out) {
    const std::vector<int64_t> ids = b_->Ints(name, {c_.vocab, c_.top_k});
    out->token_experts.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= c_.experts) {
        b_->Problem(Format("{} has expert {} for token {}; there are {}", name, ids[i],
                           i / static_cast<size_t>(c_.top_k), c_.experts));
        return;
      }
      out->token_experts.push_back(static_cast<int32_t>(ids[i]));
    }
  }

  const DeepseekV4Config& c_;
  const Names& names_;
  FamilyBinder* b_;
  std::string prefix_;
  DeepseekV4Config::Layer kind_;
};

void BindDraft(const DeepseekV4Config& c, const Names& names, FamilyBinder* binder,
               DeepseekV4Draft* out) {
  const std::string at = "mtp.0.";
  out->token_norm = binder->Vector(at + "enorm.weight", c.hidden);
  out->token_proj = binder->Matrix(at + "e_proj", c.hidden, c.hidden);
  out->stream_norm = binder->Vector(at + "hnorm.weight", c.hidden);
  out->stream_proj = binder->Matrix(at + "h_proj", c.hidden, c.hidden);
  LayerBinder layer(c, names, binder, at, {});
  layer.Bind(&out->layer);
  out->head_hyper = layer.Hyper(at + "hc_head_", c.streams, 1);
  out->output_norm = binder->Vector(at + "norm.weight", c.hidden);
}

Status BindAll(const DeepseekV4Config& c, const ModelConfig& facts, FamilyBinder* binder,
               DeepseekV4Weights* out) {
  const Names names = NamesOf(*binder);
  if (!facts.tied_head) {
    out->embedding = binder->Matrix(names.embedding, c.vocab, c.hidden, WeightRole::kEmbedding);
  }
  out->layers.resize(static_cast<size_t>(c.layers));
  for (int i = 0; i < c.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    LayerBinder(c, names, binder, Format("{}layers.{}.", names.prefix, i), c.layer[at])
        .Bind(&out->layers[at]);
  }
  out->head_hyper = LayerBinder(c, names, binder, "", {}).Hyper(names.head_hyper, c.streams, 1);
  out->output_norm = binder->Vector(names.prefix + "norm.weight", c.hidden);
  out->head = binder->Matrix(facts.tied_head ? names.embedding : "head", c.vocab, c.hidden);
  if (c.draft_layers > 0 && binder->Has("mtp.0.e_proj.weight")) {
    out->draft = std::make_unique<DeepseekV4Draft>();
    BindDraft(c, names, binder, out->draft.get());
  }
  binder->Ignore("mtp.");  // further draft layers, copies of embedding and head
  if (facts.tied_head) binder->Ignore("head.");
  return binder->Finish(facts.architecture);
}

}  // namespace

Result<DeepseekV4Weights> BindDeepseekV4(const Checkpoint& checkpoint,
                                         const DeepseekV4Config& config, Backend* backend,
                                         const LoadProgress& progress) {
  DeepseekV4Weights weights;
  for (const BindPass pass : {BindPass::kCheck, BindPass::kBind}) {
    weights = {};
    FamilyBinder binder(checkpoint, backend, progress, pass);
    DI_TRY(BindAll(config, checkpoint.config(), &binder, &weights));
    weights.packed_bytes = binder.packed_bytes();
  }
  return weights;
}

}  // namespace deepinfer
