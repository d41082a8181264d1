#include "models/random_deepseek_shape.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"

namespace deepinfer {
namespace {

using Kind = RandomTensorPlan::Kind;

// The released model.
constexpr int kHiddenFull = 5120, kLayersFull = 40, kVocabFull = 129'280;
constexpr int kHeadsFull = 64, kInnerFull = 2304, kExpertsFull = 384, kDraftExpertsFull = 128;
constexpr int kHeadDim = 512, kRopeDim = 64, kWindow = 128;
constexpr int kIndexHeadsFull = 32, kIndexHeadDim = 128, kIndexTopK = 512;
constexpr int kStreams = 4, kMixRows = 24;  // 4 pre + 4 post + 4 * 4 combination coefficients
constexpr int kDraftLayers = 3, kDraftBlock = 5, kMarkovRank = 256;
constexpr int kMaxNgram = 4;
constexpr int kBlock = 32;  // of FP8 scales, both ways, and of FP4 scales along a row

struct Scale {
  int hidden, layers;
};
constexpr Scale kScales[] = {
    {128, 10},  {256, 10},  {256, 20},  {384, 20},  {512, 20},  {512, 40},
    {640, 40},  {768, 40},  {1024, 40}, {1280, 40}, {1536, 40}, {1792, 40},
    {2048, 40}, {2560, 40}, {3072, 40}, {3584, 40}, {4096, 40}, {5120, 40},
};

int RoundTo(double value, int multiple, int least) {
  const int rounded = static_cast<int>(std::lround(value / multiple)) * multiple;
  return std::max(rounded, least);
}

// Which layers compress, own keys and values, and choose: the release's pattern from 40 layers.
void SetLayerRoles(RandomDeepseekShape* s) {
  const int half = s->layers / 2;
  for (int layer = 0; layer < s->layers + kDraftLayers; ++layer) {
    s->ratios.push_back(layer < 2 || layer >= s->layers ? 0 : layer < half ? 2 : 1);
  }
  for (int layer = 2; layer < half; layer += 6) s->kv_sources.push_back(layer);
  s->kv_sources.push_back(half);
  s->index_sources = s->kv_sources;
  for (int layer = half + 4; layer < s->layers; layer += 4) s->index_sources.push_back(layer);
  s->candidate_source = half;
  s->engram_layers = {1, s->layers == kLayersFull ? 14 : half - 1};
}

RandomDeepseekShape ScaledShape(const Scale& scale) {
  RandomDeepseekShape s;
  const double part = static_cast<double>(scale.hidden) / kHiddenFull;
  s.hidden = scale.hidden;
  s.layers = scale.layers;
  s.vocab = RoundTo(kVocabFull * part, 64, 1024);
  s.heads = RoundTo(kHeadsFull * part, scale.hidden >= 640 ? 8 : 4, 4);
  s.q_lora = RoundTo(scale.hidden / 4.0, kBlock, kBlock);
  s.o_groups = std::max(1, s.heads / 8);
  s.o_lora = std::min(1024, scale.hidden);
  s.index_heads = RoundTo(kIndexHeadsFull * part, 4, 8);
  s.expert_inner = RoundTo(kInnerFull * part, kBlock, 2 * kBlock);
  s.engram_heads = scale.hidden >= 512 ? 8 : 2;
  s.engram_head_dim = scale.hidden >= 512 ? 256 : 64;
  SetLayerRoles(&s);
  return s;
}

void SetExperts(int experts, RandomDeepseekShape* s) {
  s->experts = std::clamp(experts, 8, kExpertsFull);
  s->top_k = std::min(6, s->experts / 2);
  s->draft_experts = std::clamp(s->experts / 3, 4, kDraftExpertsFull);
  s->draft_top_k = std::min(3, s->draft_experts / 2);
}

uint64_t BytesOf(const RandomDeepseekShape& shape) {
  uint64_t bytes = 0;
  for (const RandomTensorPlan& tensor : DeepseekTensors(shape)) {
    uint64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
    bytes += count * static_cast<uint64_t>(Info(tensor.dtype).block_bytes);
  }
  return bytes;
}

uint64_t ExpertBytes(const RandomDeepseekShape& s) {
  const auto elements = 3 * static_cast<uint64_t>(s.hidden) * static_cast<uint64_t>(s.expert_inner);
  return elements / 2 + elements / kBlock;
}

// Collects the tensors of one model.
class TensorList {
 public:
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }

  void Bf16(const std::string& name, std::vector<int64_t> shape, double deviation) {
    Add(name, DType::kBF16, std::move(shape), Kind::kBf16, deviation, 0);
  }
  void Norm(const std::string& name, int64_t size) {
    Add(name, DType::kBF16, {size}, Kind::kBf16Norm, 0, 0);
  }
  void F32(const std::string& name, std::vector<int64_t> shape, double deviation, double centre) {
    Add(name, DType::kF32, std::move(shape), centre == 0 ? Kind::kF32 : Kind::kF32Around, deviation,
        centre);
  }
  // Weights whose outputs are as wide as their inputs.
  void Fp8(const std::string& name, int64_t rows, int64_t columns) {
    const double deviation = 1 / std::sqrt(static_cast<double>(columns));
    Add(name + ".weight", DType::kF8_E4M3, {rows, columns}, Kind::kFp8Codes, deviation, 0);
    Add(name + ".scale", DType::kF8_E8M0,
        {(rows + kBlock - 1) / kBlock, (columns + kBlock - 1) / kBlock}, Kind::kFp8Scales,
        deviation, 0);
  }
  void Fp4(const std::string& name, int64_t rows, int64_t columns) {
    const double deviation = 1 / std::sqrt(static_cast<double>(columns));
    Add(name + ".weight", DType::kI8, {rows, columns / 2}, Kind::kFp4Codes, deviation, 0);
    Add(name + ".scale", DType::kF8_E8M0, {rows, columns / kBlock}, Kind::kFp4Scales, deviation, 0);
  }
  // One scale for each row and 32 columns.
  void Table(const std::string& name, int64_t rows, int64_t columns) {
    Add(name + ".weight", DType::kF8_E4M3, {rows, columns}, Kind::kFp8Codes, 1, 0);
    Add(name + ".scale", DType::kF8_E8M0, {rows, columns / kBlock}, Kind::kFp8Scales, 1, 0);
  }

  std::vector<RandomTensorPlan> Take() { return std::move(tensors_); }

 private:
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape, Kind kind,
           double deviation, double centre) {
    tensors_.push_back({prefix_ + name, dtype, std::move(shape), kind, deviation, centre});
  }

  std::string prefix_;
  std::vector<RandomTensorPlan> tensors_;
};

bool Holds(const std::vector<int>& layers, int layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

double InverseRoot(int64_t n) { return 1 / std::sqrt(static_cast<double>(n)); }

void AddStreams(const RandomDeepseekShape& s, TensorList* out) {
  const int64_t width = int64_t{kStreams} * s.hidden;
  for (const char* site : {"hc_attn", "hc_ffn"}) {
    out->F32(Format("{}_fn", site), {kMixRows, width}, InverseRoot(width), 0);
    out->F32(Format("{}_base", site), {kMixRows}, 1, 0);
    out->F32(Format("{}_scale", site), {3}, 0.2, 0.8);
  }
}

void AddAttention(const RandomDeepseekShape& s, TensorList* out) {
  const int64_t d = s.hidden;
  out->Norm("attn_norm.weight", d);
  out->Fp8("attn.wq_a", s.q_lora, d);
  out->Norm("attn.q_norm.weight", s.q_lora);
  out->Fp8("attn.wq_b", int64_t{s.heads} * kHeadDim, s.q_lora);
  out->Fp8("attn.wkv", kHeadDim, d);
  out->Norm("attn.kv_norm.weight", kHeadDim);
  const int64_t group = int64_t{s.heads} / s.o_groups * kHeadDim;
  out->Fp8("attn.wo_a", int64_t{s.o_groups} * s.o_lora, group);
  out->Fp8("attn.wo_b", d, int64_t{s.o_groups} * s.o_lora);
  out->F32("attn.attn_sink", {s.heads}, 1, 0);
}

void AddCompression(const RandomDeepseekShape& s, int layer, TensorList* out) {
  const int64_t d = s.hidden;
  const bool is_source = Holds(s.kv_sources, layer);
  if (is_source) {
    out->Bf16("attn.compressor.wkv.weight", {kHeadDim, d}, InverseRoot(d));
    if (s.ratios[static_cast<size_t>(layer)] > 1) {
      out->Bf16("attn.compressor.wgate.weight", {kHeadDim, d}, InverseRoot(d));
    }
    out->Norm("attn.compressor.norm.weight", kHeadDim);
  }
  if (!Holds(s.index_sources, layer)) return;
  out->Fp8("attn.indexer.wq_b", int64_t{s.index_heads} * kIndexHeadDim, s.q_lora);
  out->Bf16("attn.indexer.weights_proj.weight", {s.index_heads, d}, InverseRoot(d));
  if (!is_source) return;
  out->Bf16("attn.indexer.wk.weight", {kIndexHeadDim, kHeadDim}, InverseRoot(kHeadDim));
  out->Norm("attn.indexer.k_norm.weight", kIndexHeadDim);
}

void AddExperts(const RandomDeepseekShape& s, int experts, TensorList* out) {
  const int64_t d = s.hidden, inner = s.expert_inner;
  out->Norm("ffn_norm.weight", d);
  out->Bf16("ffn.gate.weight", {experts, d}, 2 * InverseRoot(d));
  out->F32("ffn.gate.bias", {experts}, 0.3, 0);
  out->F32("ffn.gate.bias_vl", {experts}, 0.3, 0);
  out->Fp8("ffn.shared_experts.w1", inner, d);
  out->Fp8("ffn.shared_experts.w2", d, inner);
  out->Fp8("ffn.shared_experts.w3", inner, d);
  for (int e = 0; e < experts; ++e) {
    out->Fp4(Format("ffn.experts.{}.w1", e), inner, d);
    out->Fp4(Format("ffn.experts.{}.w2", e), d, inner);
    out->Fp4(Format("ffn.experts.{}.w3", e), inner, d);
  }
}

void AddEngram(const RandomDeepseekShape& s, size_t index, TensorList* out) {
  const int64_t columns = int64_t{kMaxNgram - 1} * s.engram_heads * s.engram_head_dim;
  out->Fp8("engram.wkv", int64_t{kStreams + 1} * s.hidden, columns);
  out->Bf16("engram.q_weight", {kStreams, s.hidden}, 1);
  out->Bf16("engram.k_weight", {kStreams, s.hidden}, 1);
  out->Table("engram.embed", s.engram_rows[index], s.engram_head_dim);
}

void AddDraft(const RandomDeepseekShape& s, TensorList* out) {
  const int64_t d = s.hidden;
  for (int layer = 0; layer < kDraftLayers; ++layer) {
    out->SetPrefix(Format("mtp.{}.", layer));
    AddStreams(s, out);
    AddAttention(s, out);
    AddExperts(s, s.draft_experts, out);
    if (layer == 0) {
      out->Fp8("main_proj", d, 3 * d);
      out->Norm("main_norm.weight", d);
    }
    if (layer + 1 < kDraftLayers) continue;
    out->Norm("norm.weight", d);
    out->Bf16("markov_head.embed.weight", {s.vocab, kMarkovRank}, 1);
    out->Bf16("markov_head.head.weight", {s.vocab, kMarkovRank}, InverseRoot(kMarkovRank));
    out->Bf16("confidence_head.proj.weight", {1, d + kMarkovRank}, InverseRoot(d + kMarkovRank));
  }
}

Json Ints(const std::vector<int>& values) {
  Json list = Json::Array();
  for (const int value : values) list.Push(Json::Int(value));
  return list;
}

Json RopeScaling() {
  Json rope = Json::Object();
  rope.Set("type", Json::String("yarn"));
  rope.Set("factor", Json::Int(16));
  rope.Set("beta_fast", Json::Int(32));
  rope.Set("beta_slow", Json::Int(1));
  rope.Set("original_max_position_embeddings", Json::Int(65536));
  return rope;
}

void SetMixture(const RandomDeepseekShape& s, Json* text) {
  text->Set("n_routed_experts", Json::Int(s.experts));
  text->Set("n_shared_experts", Json::Int(1));
  text->Set("num_experts_per_tok", Json::Int(s.top_k));
  text->Set("moe_intermediate_size", Json::Int(s.expert_inner));
  text->Set("routed_scaling_factor", Json::Double(1.5));
  text->Set("scoring_func", Json::String("sqrtsoftplus"));
  text->Set("topk_method", Json::String("noaux_tc"));
  text->Set("norm_topk_prob", Json::Bool(true));
  text->Set("swiglu_limit", Json::Double(10.0));
  text->Set("hidden_act", Json::String("silu"));
  text->Set("hc_mult", Json::Int(kStreams));
  text->Set("hc_sinkhorn_iters", Json::Int(20));
  text->Set("hc_eps", Json::Double(1e-6));
}

void SetMemoryAndDraft(const RandomDeepseekShape& s, const EngramSidecar& engram, Json* text) {
  text->Set("engram_layer_ids", Ints(s.engram_layers));
  Json& rows = text->Set("engram_num_embeddings", Json::Array());
  for (const int64_t count : engram.rows) rows.Push(Json::Int(count));
  text->Set("engram_max_ngram_size", Json::Int(kMaxNgram));
  text->Set("engram_vocab_size", Json::Int(s.engram_table));
  text->Set("engram_n_heads", Json::Int(s.engram_heads));
  text->Set("engram_head_dim", Json::Int(s.engram_head_dim));
  text->Set("engram_pad_token_id", Json::Int(2));
  text->Set("engram_compressed_vocab_size", Json::Int(engram.keys));
  text->Set("dspark_block_size", Json::Int(kDraftBlock));
  text->Set("dspark_noise_token_id", Json::Int(NoiseTokenOf(s)));
  text->Set("dspark_target_layer_ids", Ints({s.layers - 3, s.layers - 2, s.layers - 1}));
  text->Set("dspark_markov_rank", Json::Int(kMarkovRank));
  text->Set("dspark_n_routed_experts", Json::Int(s.draft_experts));
  text->Set("dspark_num_experts_per_tok", Json::Int(s.draft_top_k));
}

Json TextConfig(const RandomDeepseekShape& s, const EngramSidecar& engram) {
  Json text = Json::Object();
  text.Set("model_type", Json::String("deepseek_v41_text"));
  text.Set("vocab_size", Json::Int(s.vocab));
  text.Set("hidden_size", Json::Int(s.hidden));
  text.Set("num_hidden_layers", Json::Int(s.layers));
  text.Set("num_nextn_predict_layers", Json::Int(kDraftLayers));
  text.Set("num_attention_heads", Json::Int(s.heads));
  text.Set("num_key_value_heads", Json::Int(1));
  text.Set("head_dim", Json::Int(kHeadDim));
  text.Set("qk_rope_head_dim", Json::Int(kRopeDim));
  text.Set("q_lora_rank", Json::Int(s.q_lora));
  text.Set("o_groups", Json::Int(s.o_groups));
  text.Set("o_lora_rank", Json::Int(s.o_lora));
  text.Set("sliding_window", Json::Int(kWindow));
  text.Set("max_position_embeddings", Json::Int(1'048'576));
  text.Set("rope_theta", Json::Int(10000));
  text.Set("compress_rope_theta", Json::Int(160000));
  text.Set("rope_scaling", RopeScaling());
  text.Set("rms_norm_eps", Json::Double(1e-20));
  text.Set("compress_ratios", Ints(s.ratios));
  text.Set("kv_source_layer_ids", Ints(s.kv_sources));
  text.Set("index_source_layer_ids", Ints(s.index_sources));
  text.Set("candidate_source_layer_id", Json::Int(s.candidate_source));
  text.Set("candidate_topk_blocks", Json::Int(2048));
  text.Set("candidate_block_size", Json::Int(8));
  text.Set("index_n_heads", Json::Int(s.index_heads));
  text.Set("index_head_dim", Json::Int(kIndexHeadDim));
  text.Set("index_topk", Json::Int(kIndexTopK));
  SetMixture(s, &text);
  SetMemoryAndDraft(s, engram, &text);
  return text;
}

}  // namespace

RandomDeepseekShape ChooseDeepseekShape(uint64_t bytes, double expert_share, double engram_share) {
  const auto total = static_cast<double>(bytes);
  RandomDeepseekShape best;
  for (const Scale& scale : kScales) {
    RandomDeepseekShape shape = ScaledShape(scale);
    // Experts are counted later; 8 of each layer are in every shape.
    SetExperts(8, &shape);
    const double row_bytes = shape.engram_head_dim * (1 + 1.0 / kBlock);
    const int primes = (kMaxNgram - 1) * shape.engram_heads;
    shape.engram_table =
        std::max<int64_t>(64, std::llround(total * engram_share / 2 / row_bytes / primes));
    shape.engram_rows = {0, 0};  // nothing yet
    const uint64_t rest =
        BytesOf(shape) - ExpertBytes(shape) * 8 * static_cast<uint64_t>(shape.layers);
    const bool fits = static_cast<double>(rest) <= total * (1 - expert_share - engram_share);
    if (!fits && best.hidden > 0) continue;
    // Each expert of every layer comes with a third of one in each of three draft layers.
    const double each = static_cast<double>(ExpertBytes(shape)) * (shape.layers + 1);
    const double left = total * (1 - engram_share) - static_cast<double>(rest);
    SetExperts(static_cast<int>(std::min(left / each, 1e6)), &shape);
    best = std::move(shape);
  }
  return best;
}

std::vector<RandomTensorPlan> DeepseekTensors(const RandomDeepseekShape& s) {
  TensorList list;
  list.Bf16("embed.weight", {s.vocab, s.hidden}, 1);
  for (int layer = 0; layer < s.layers; ++layer) {
    list.SetPrefix(Format("layers.{}.", layer));
    AddStreams(s, &list);
    AddAttention(s, &list);
    if (s.ratios[static_cast<size_t>(layer)] > 0) AddCompression(s, layer, &list);
    AddExperts(s, s.experts, &list);
  }
  AddDraft(s, &list);
  list.SetPrefix("");
  list.Norm("norm.weight", s.hidden);
  list.Bf16("head.weight", {s.vocab, s.hidden}, 2 * InverseRoot(s.hidden));
  // The tables come last, as in the release: they fill shards of their own.
  for (size_t i = 0; i < s.engram_layers.size(); ++i) {
    list.SetPrefix(Format("layers.{}.", s.engram_layers[i]));
    AddEngram(s, i, &list);
  }
  return list.Take();
}

Json DeepseekConfigJson(const RandomDeepseekShape& shape, const EngramSidecar& engram) {
  Json config = Json::Object();
  config.Set("architectures", Json::Array()).Push(Json::String("DeepseekV41ForCausalLM"));
  config.Set("model_type", Json::String("deepseek_v41"));
  config.Set("image_token_id", Json::Int(ImageTokenOf(shape)));
  config.Set("bos_token_id", Json::Int(0));
  config.Set("eos_token_id", Json::Int(1));
  config.Set("pad_token_id", Json::Int(2));
  config.Set("tie_word_embeddings", Json::Bool(false));
  config.Set("torch_dtype", Json::String("bfloat16"));
  config.Set("text_config", TextConfig(shape, engram));
  Json quantization = Json::Object();
  quantization.Set("quant_method", Json::String("fp8"));
  quantization.Set("activation_scheme", Json::String("dynamic"));
  quantization.Set("weight_block_size", Ints({kBlock, kBlock}));
  quantization.Set("scale_fmt", Json::String("ue8m0"));
  quantization.Set("expert_dtype", Json::String("fp4"));
  config.Set("quantization_config", std::move(quantization));
  return config;
}

EngramShape EngramShapeOf(const RandomDeepseekShape& shape) {
  EngramShape engram;
  engram.layer_ids = shape.engram_layers;
  engram.table_size = shape.engram_table;
  engram.max_ngram = kMaxNgram;
  engram.heads = shape.engram_heads;
  engram.pad_token = 2;
  engram.vocab = shape.vocab;
  return engram;
}

}  // namespace deepinfer
