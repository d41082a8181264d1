// Offline generation on a tiny checkpoint: the whole path from files to text.
#include "deepinfer/llm.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/loaded_model.h"

namespace deepinfer {
namespace {

class LlmTest : public testing::Test {
 protected:
  void SetUp() override {
    LlmOptions options;
    options.model = "tests/golden/data/llama";
    options.engine.dtype = "float32";
    options.engine.threads = 1;
    options.engine.max_num_seqs = 4;
    Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    llm_ = std::move(llm).value();
    sampling_.temperature = 0.0F;
    sampling_.max_tokens = 6;
    sampling_.ignore_eos = true;
  }

  std::unique_ptr<LLM> llm_;
  SamplingParams sampling_;
};

TEST_F(LlmTest, AnswersComeInTheOrderOfThePrompts) {
  std::vector<Prompt> prompts;
  for (int i = 0; i < 40; ++i) {
    prompts.push_back({.token_ids = std::vector<TokenId>(static_cast<size_t>(1 + i % 13), 5 + i)});
  }
  const std::vector<GenerateOutput> all = llm_->Generate(prompts, sampling_);
  ASSERT_EQ(all.size(), 40U);
  for (size_t i = 0; i < all.size(); i += 7) {
    ASSERT_TRUE(all[i].status.ok()) << all[i].status.message();
    const std::vector<GenerateOutput> alone =
        llm_->Generate(std::span<const Prompt>(&prompts[i], 1), sampling_);
    EXPECT_EQ(all[i].prompt_token_ids, prompts[i].token_ids);
    ASSERT_EQ(all[i].completions.size(), 1U);
    EXPECT_EQ(all[i].completions[0].token_ids, alone[0].completions[0].token_ids);
    EXPECT_EQ(all[i].completions[0].text, alone[0].completions[0].text);
    EXPECT_EQ(all[i].completions[0].finish, FinishReason::kLength);
    EXPECT_EQ(all[i].usage.completion_tokens, 6);
  }
}

TEST_F(LlmTest, OneBadPromptFailsAlone) {
  const std::vector<Prompt> prompts = {
      {.token_ids = {5, 6}}, {.token_ids = {1'000'000}}, {.token_ids = {7}}};
  const std::vector<GenerateOutput> outputs = llm_->Generate(prompts, sampling_);
  EXPECT_TRUE(outputs[0].status.ok());
  EXPECT_EQ(outputs[1].status.code(), StatusCode::kInvalid);
  EXPECT_TRUE(outputs[1].completions.empty());
  EXPECT_TRUE(outputs[2].status.ok());
}

TEST_F(LlmTest, AnswersKeepToAGrammar) {
  sampling_.temperature = 1.5F;
  sampling_.max_tokens = 20;
  sampling_.n = 2;
  sampling_.grammar = GrammarSource{GrammarSource::Kind::kRegex, "[a-z]{3} [0-9]"};
  const std::vector<Prompt> prompts(6, Prompt{.token_ids = {5, 6, 7}});
  for (const GenerateOutput& output : llm_->Generate(prompts, sampling_)) {
    ASSERT_TRUE(output.status.ok()) << output.status.message();
    for (const Completion& completion : output.completions) {
      ASSERT_EQ(completion.text.size(), 5U) << completion.text;
      EXPECT_EQ(completion.text[3], ' ');
      EXPECT_EQ(completion.finish, FinishReason::kStop);
    }
  }
  sampling_.grammar->text = "(";
  sampling_.grammar->param = "guided_regex";
  for (const GenerateOutput& output : llm_->Generate(prompts, sampling_)) {
    EXPECT_EQ(output.status.code(), StatusCode::kInvalid);
    EXPECT_NE(output.status.message().find("\"guided_regex\" cannot be enforced"),
              std::string::npos);
  }
}

// Threads that compile for requests which end with the engine.
TEST_F(LlmTest, AnEngineMayGoWhileGrammarsAreCompiled) {
  class Sink final : public OutputSink {
    void OnOutput(OutputDelta /*delta*/) override {}
  };
  Sink sink;
  Request request;
  request.prompt = {5, 6};
  for (int i = 0; i < 20; ++i) {
    request.sampling.grammar = GrammarSource{
        GrammarSource::Kind::kRegex, "([a-z]{1,40}[0-9]?){1," + std::to_string(i + 50) + "}"};
    const Result<RequestId> id = llm_->engine().Submit(request, &sink);
    if (i % 3 == 0 && id.ok()) llm_->engine().Cancel(*id);
  }
  llm_.reset();
}

TEST_F(LlmTest, TextSamplesLogprobsAndEcho) {
  sampling_.temperature = 1.0F;
  sampling_.seed = 3;
  sampling_.n = 3;
  sampling_.logprobs = 2;
  sampling_.prompt_logprobs = 1;
  sampling_.echo = true;
  const std::vector<std::string> prompts = {"ab cd"};
  const std::vector<GenerateOutput> outputs = llm_->Generate(prompts, sampling_);
  ASSERT_TRUE(outputs[0].status.ok()) << outputs[0].status.message();
  ASSERT_EQ(outputs[0].completions.size(), 3U);
  EXPECT_EQ(outputs[0].prompt_logprobs.size(), outputs[0].prompt_token_ids.size());
  for (const Completion& completion : outputs[0].completions) {
    EXPECT_EQ(completion.token_ids.size(), 6U);
    EXPECT_EQ(completion.logprobs.size(), 6U);
    EXPECT_EQ(completion.text.rfind("ab cd", 0), 0U) << completion.text;
    EXPECT_EQ(completion.logprobs[0].top.size(), 2U);
  }
  EXPECT_EQ(outputs[0].usage.completion_tokens, 18);
  // Sample i of n is the request with seed + i.
  sampling_.n = 1;
  sampling_.seed = 5;
  const std::vector<GenerateOutput> third = llm_->Generate(prompts, sampling_);
  EXPECT_EQ(third[0].completions[0].token_ids, outputs[0].completions[2].token_ids);
}

// A placeholder of images stands for no text: whatever the model or the request makes of it.
TEST(Llm, ImagePlaceholdersAreNeverSampled) {
  LlmOptions options;
  options.model = "tests/golden/data/deepseek_v41";
  options.engine.dtype = "float32";
  options.engine.threads = 1;
  options.engine.max_num_seqs = 4;
  Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  const TokenId image = (*llm)->engine().limits().image_id;
  ASSERT_GE(image, 0);
  const std::vector<Prompt> prompts = {{.token_ids = {5, 6, 7, 8}}, {.token_ids = {9}}};
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingParams sampling;
    sampling.temperature = temperature;
    sampling.seed = 11;
    sampling.max_tokens = 8;
    sampling.ignore_eos = true;
    const std::vector<GenerateOutput> plain = (*llm)->Generate(prompts, sampling);
    sampling.logit_bias = {{image, 100.0F}};
    const std::vector<GenerateOutput> biased = (*llm)->Generate(prompts, sampling);
    for (size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_TRUE(plain[i].status.ok() && biased[i].status.ok()) << biased[i].status.message();
      const std::vector<TokenId>& ids = plain[i].completions[0].token_ids;
      EXPECT_EQ(std::count(ids.begin(), ids.end(), image), 0);
      EXPECT_EQ(ids, biased[i].completions[0].token_ids);
    }
  }
}

// However weights and rows come to memory: the same tokens, and figures that tell it.
TEST(Llm, WeightsMayComeAsTheyAreUsed) {
  struct Way {
    int64_t cache_bytes;
    const char* io;
  };
  SamplingParams sampling;
  sampling.temperature = 0.0F;
  sampling.max_tokens = 12;
  sampling.ignore_eos = true;
  const std::vector<Prompt> prompts = {{.token_ids = {5, 6, 7, 8, 9}}};
  std::vector<TokenId> want;
  for (const Way& way : {Way{0, "auto"}, Way{1 << 18, "pread"}, Way{1 << 30, "auto"}}) {
    LlmOptions options;
    options.model = "tests/golden/data/deepseek_v41";
    options.engine.threads = 1;
    options.engine.max_num_seqs = 2;
    options.engine.weight_cache_bytes = way.cache_bytes;
    options.engine.engram_io = way.io;
    Result<std::unique_ptr<LLM>> llm = LLM::Create(options);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    const WeightStats before = (*llm)->engine().Stats().weights;
    EXPECT_GT(before.packed_bytes, 0);
    EXPECT_EQ(before.cache_bytes, 0);
    const std::vector<GenerateOutput> outputs = (*llm)->Generate(prompts, sampling);
    ASSERT_TRUE(outputs[0].status.ok()) << outputs[0].status.message();
    if (want.empty()) want = outputs[0].completions[0].token_ids;
    EXPECT_EQ(outputs[0].completions[0].token_ids, want);
    const WeightStats after = (*llm)->engine().Stats().weights;
    EXPECT_EQ(after.cache_limit_bytes, way.cache_bytes);
    EXPECT_EQ(after.packed_bytes - before.packed_bytes, after.cache_bytes);
    EXPECT_EQ(after.cache_loads > 0, way.cache_bytes > 0);
    EXPECT_EQ(after.cache_lookups, after.cache_hits + after.cache_streams + after.cache_loads);
    EXPECT_LE(after.cache_bytes, after.cache_limit_bytes);
    EXPECT_GT(after.engram_tables, 0);
    EXPECT_GT(after.engram_rows, 0);
    EXPECT_GT(after.engram_reads, 0);
    EXPECT_GT(after.engram_read_bytes, after.engram_reads);
    EXPECT_EQ(after.engram_errors, 0);
    EXPECT_LE(after.engram_hits, after.engram_rows);
  }
}

TEST(Llm, ErrorsSayWhatToDo) {
  LlmOptions options;
  options.model = "tests/golden/data/absent";
  EXPECT_FALSE(LLM::Create(options).ok());
  options.model = "tests/golden/data/llama";
  options.engine.dtype = "float99";
  EXPECT_EQ(LLM::Create(options).status().param(), "dtype");
  options.engine.dtype = "auto";
  options.engine.engram_io = "smoke";
  EXPECT_EQ(LLM::Create(options).status().param(), "engram_io");
  options.engine.engram_io = "auto";
  options.engine.block_size = 17;
  EXPECT_EQ(LLM::Create(options).status().param(), "block_size");
  options.engine.block_size = 16;
  options.engine.max_model_len = 1 << 30;
  EXPECT_EQ(LLM::Create(options).status().param(), "max_model_len");
}

}  // namespace
}  // namespace deepinfer
