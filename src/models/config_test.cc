#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/checkpoint_test_util.h"
#include "models/model_config.h"

namespace deepinfer {
namespace {

ModelConfig MustRead(std::string_view hf_class, std::string_view extra = "{}") {
  Result<ModelConfig> config = ConfigFromHf(TinyConfig(hf_class, extra), nullptr);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *std::move(config) : ModelConfig();
}

std::string Error(std::string_view hf_class, std::string_view extra) {
  const Result<ModelConfig> config = ConfigFromHf(TinyConfig(hf_class, extra), nullptr);
  return config.ok() ? "" : config.status().message();
}

TEST(ConfigHf, FamiliesDifferInBiasAndNorms) {
  const ModelConfig llama = MustRead("LlamaForCausalLM");
  EXPECT_EQ(llama.architecture, "llama");
  EXPECT_FALSE(llama.qkv_bias || llama.output_bias || llama.qk_norm || llama.tied_head);
  EXPECT_EQ(llama.moe.experts, 0);
  EXPECT_EQ(llama.rope.style, RopeStyle::kHalves);
  const ModelConfig biased =
      MustRead("LlamaForCausalLM", R"({"attention_bias":true,"mlp_bias":true})");
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
  const ModelConfig qwen2 = MustRead("Qwen2ForCausalLM");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias || qwen2.qk_norm);
  EXPECT_TRUE(MustRead("Qwen3ForCausalLM").qk_norm);
  EXPECT_TRUE(MustRead("Qwen3ForCausalLM", R"({"tie_word_embeddings":true})").tied_head);
}

TEST(ConfigHf, HeadDimDefaults) {
  EXPECT_EQ(MustRead("LlamaForCausalLM", R"({"head_dim":null})").head_dim, 16);
  EXPECT_EQ(MustRead("LlamaForCausalLM", R"({"num_key_value_heads":null})").kv_heads, 4);
  EXPECT_NE(Error("LlamaForCausalLM", R"({"head_dim":null,"num_attention_heads":3,)"
                                      R"("num_key_value_heads":3})")
                .find("not a multiple"),
            std::string::npos);
}

TEST(ConfigHf, Experts) {
  const ModelConfig moe =
      MustRead("Qwen3MoeForCausalLM", R"({"num_hidden_layers":6,"decoder_sparse_step":2,)"
                                      R"("mlp_only_layers":[3],"norm_topk_prob":true})");
  EXPECT_EQ(moe.moe.experts, 4);
  EXPECT_EQ(moe.moe.top_k, 2);
  EXPECT_TRUE(moe.moe.normalize_top_k);
  EXPECT_EQ(moe.moe.sparse_layer, (std::vector<uint8_t>{0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(MustRead("Qwen3MoeForCausalLM", R"({"num_local_experts":4})").moe.experts, 4);
  EXPECT_NE(Error("Qwen3MoeForCausalLM", R"({"num_experts_per_tok":5})").find("is 5"),
            std::string::npos);
  EXPECT_NE(Error("Qwen3MoeForCausalLM", R"({"mlp_only_layers":[2]})").find("has 2"),
            std::string::npos);
}

TEST(ConfigHf, BothSpellingsOfRope) {
  const ModelConfig old_style = MustRead(
      "LlamaForCausalLM",
      R"({"rope_theta":500000,"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":1,)"
      R"("high_freq_factor":4,"original_max_position_embeddings":64}})");
  const ModelConfig new_style = MustRead(
      "LlamaForCausalLM",
      R"({"rope_parameters":{"rope_type":"llama3","rope_theta":500000.0,"factor":8.0,)"
      R"("low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}})");
  EXPECT_EQ(old_style.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(old_style.rope.inv_freq, new_style.rope.inv_freq);
  EXPECT_EQ(old_style.rope.inv_freq.size(), 16U);
  EXPECT_EQ(old_style.rope.inv_freq[0], 1.0F);
  // The lowest frequencies turn less than once in the original context: divided by the factor.
  const float unscaled = std::pow(500000.0F, -30.0F / 32.0F);
  EXPECT_NEAR(old_style.rope.inv_freq[15], unscaled / 8.0F, unscaled * 1e-6F);
}

TEST(ConfigHf, LinearAndPartialRope) {
  const ModelConfig linear =
      MustRead("Qwen2ForCausalLM",
               R"({"rope_scaling":{"rope_type":"linear","factor":4},"partial_rotary_factor":0.5})");
  EXPECT_EQ(linear.rope.dim, 16);
  EXPECT_EQ(linear.rope.inv_freq.size(), 8U);
  EXPECT_EQ(linear.rope.inv_freq[0], 0.25F);
}

// Values computed by hand from the paper for d = 32, theta = 10000, factor 4, context 4096.
TEST(ConfigHf, Yarn) {
  const ModelConfig yarn = MustRead(
      "Qwen3ForCausalLM", R"({"rope_theta":10000,"rope_scaling":{"rope_type":"yarn","factor":4.0,)"
                          R"("original_max_position_embeddings":4096}})");
  EXPECT_NEAR(yarn.rope.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-6);
  // Pair 5 is the floor of the fast bound (5.23), pair 12 the ceiling of the slow one (11.25).
  for (int i = 0; i < 16; ++i) {
    const double base = std::pow(10000.0, -i / 16.0);
    const double ramp = std::min(std::max((i - 5) / 7.0, 0.0), 1.0);
    EXPECT_NEAR(yarn.rope.inv_freq[static_cast<size_t>(i)], base / 4.0 * ramp + base * (1.0 - ramp),
                base * 1e-6)
        << i;
  }
}

TEST(ConfigHf, TokensAndGenerationDefaults) {
  const Json config = TinyConfig("LlamaForCausalLM", R"({"eos_token_id":[7,5],"bos_token_id":3})");
  const Result<Json> generation =
      Json::Parse(R"({"eos_token_id":[5,9],"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":null,)"
                  R"("repetition_penalty":1.05,"max_new_tokens":64,"do_sample":true})");
  const Result<ModelConfig> read = ConfigFromHf(config, &*generation);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->eos_ids, (std::vector<TokenId>{5, 7, 9}));
  EXPECT_EQ(read->bos_id, 3);
  EXPECT_EQ(read->pad_id, -1);
  EXPECT_EQ(read->generation.temperature, 0.6F);
  EXPECT_EQ(read->generation.top_k, 20);
  EXPECT_FALSE(read->generation.min_p.has_value());
  EXPECT_EQ(read->generation.max_new_tokens, 64);
  const Result<Json> wild = Json::Parse(R"({"temperature":-1})");
  EXPECT_NE(ConfigFromHf(config, &*wild).status().message().find("temperature is -1"),
            std::string::npos);
}

TEST(ConfigHf, UnknownArchitecturesAreNamed) {
  EXPECT_EQ(Error("GPT2LMHeadModel", "{}"),
            "architecture \"GPT2LMHeadModel\" is not known; known architectures: llama, qwen2, "
            "qwen3, qwen3_moe, deepseek_v3, deepseek_v4, deepseek_v41");
  EXPECT_NE(Error("x", R"({"architectures":null,"model_type":"mamba"})").find("\"mamba\""),
            std::string::npos);
  EXPECT_EQ(MustRead("x", R"({"architectures":null,"model_type":"qwen2"})").architecture, "qwen2");
}

TEST(ConfigHf, EveryNumberIsChecked) {
  const struct {
    const char* extra;
    const char* says;
  } cases[] = {
      {R"({"num_hidden_layers":0})", "num_hidden_layers is 0"},
      {R"({"num_hidden_layers":null})", "num_hidden_layers is missing"},
      {R"({"num_hidden_layers":100000})", "num_hidden_layers is 100000"},
      {R"({"num_hidden_layers":2.5})", "num_hidden_layers"},
      {R"({"hidden_size":-1})", "hidden_size is -1"},
      {R"({"hidden_size":"64"})", "hidden_size"},
      {R"({"intermediate_size":99999999999})", "intermediate_size is 99999999999"},
      {R"({"num_attention_heads":0})", "num_attention_heads is 0"},
      {R"({"num_attention_heads":3})", "not a multiple"},
      {R"({"num_key_value_heads":8})", "num_key_value_heads is 8"},
      {R"({"head_dim":33})", "head_dim is 33"},
      {R"({"head_dim":100000})", "head_dim is 100000"},
      {R"({"num_attention_heads":65536,"num_key_value_heads":2})", "wide"},
      {R"({"vocab_size":0})", "vocab_size is 0"},
      {R"({"max_position_embeddings":0})", "max_position_embeddings is 0"},
      {R"({"rms_norm_eps":0})", "rms_norm_eps is 0"},
      {R"({"rms_norm_eps":-1e-6})", "rms_norm_eps"},
      {R"({"rope_theta":0.5})", "rope_theta is 0.5"},
      {R"({"partial_rotary_factor":1.5})", "partial_rotary_factor is 1.5"},
      {R"({"partial_rotary_factor":0.01})", "rotary embedding over 0"},
      {R"({"rope_scaling":{"type":"dynamic","factor":2}})", "\"dynamic\""},
      {R"({"rope_scaling":{"type":"linear"}})", "rope factor is 0"},
      {R"({"rope_scaling":{"type":"llama3","factor":8}})", "low_freq_factor is 0"},
      {R"({"rope_scaling":{"type":"yarn","factor":-4}})", "rope factor is -4"},
      {R"({"hidden_act":"gelu"})", "\"gelu\""},
      {R"({"use_sliding_window":true})", "use_sliding_window"},
      {R"({"layer_types":["full_attention","sliding_attention"]})", "sliding_attention"},
      {R"({"quantization_config":{"quant_method":"fp8"}})", "\"fp8\""},
      {R"({"eos_token_id":300})", "eos_token_id is 300"},
      {R"({"eos_token_id":"x"})", "eos_token_id"},
      {R"({"bos_token_id":-7})", "bos_token_id is -7"},
      {R"({"tie_word_embeddings":"yes"})", "tie_word_embeddings"},
  };
  for (const auto& c : cases) {
    const std::string message = Error("LlamaForCausalLM", c.extra);
    EXPECT_NE(message.find(c.says), std::string::npos) << c.extra << ": " << message;
  }
  EXPECT_FALSE(ConfigFromHf(Json::Array(), nullptr).ok());
}

TEST(Rope, FactorsOfGgufDivide) {
  RopeConfig rope;
  rope.dim = 4;
  const std::vector<float> factors = {2.0F, 8.0F};
  ASSERT_TRUE(ComputeRope(&rope, factors).ok());
  EXPECT_EQ(rope.inv_freq[0], 0.5F);
  EXPECT_NEAR(rope.inv_freq[1], 0.01F / 8.0F, 1e-9F);
  EXPECT_FALSE(ComputeRope(&rope, std::vector<float>{1.0F}).ok());
  EXPECT_FALSE(ComputeRope(&rope, std::vector<float>{1.0F, 0.0F}).ok());
  EXPECT_FALSE(ComputeRope(&rope, std::vector<float>{1.0F, NAN}).ok());
}

}  // namespace
}  // namespace deepinfer
