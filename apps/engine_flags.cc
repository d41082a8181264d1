#include "apps/engine_flags.h"

#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

// vLLM's --speculative-config; keys that are absent keep their values.
Status ParseSpeculative(const std::string& text, SpeculativeConfig* config) {
  DI_ASSIGN(const Json json, Json::Parse(text));
  if (!json.is_object()) return Invalid("wants a JSON object, for example {\"method\": \"ngram\"}");
  const std::pair<std::string_view, int*> numbers[] = {
      {"num_speculative_tokens", &config->num_speculative_tokens},
      {"prompt_lookup_max", &config->prompt_lookup_max},
      {"prompt_lookup_min", &config->prompt_lookup_min}};
  for (const auto& [key, value] : json.members()) {
    if (key == "method") {
      DI_ASSIGN(config->method, value.AsString());
      continue;
    }
    int* number = nullptr;
    for (const auto& [name, target] : numbers) {
      if (key == name) number = target;
    }
    if (number == nullptr) {
      return Invalid(
          Format("unknown key \"{}\"; keys are method, num_speculative_tokens, "
                 "prompt_lookup_max and prompt_lookup_min",
                 key));
    }
    DI_ASSIGN(const int64_t parsed, value.AsInt());
    if (parsed < 0 || parsed > 1000) {
      return Invalid(Format("{} is {}; it must be between 0 and 1000", key, parsed));
    }
    *number = static_cast<int>(parsed);
  }
  return {};
}

std::string ShowSpeculative(const SpeculativeConfig& config) {
  Json json = Json::Object();
  json.Set("method", Json::String(config.method));
  json.Set("num_speculative_tokens", Json::Int(config.num_speculative_tokens));
  json.Set("prompt_lookup_max", Json::Int(config.prompt_lookup_max));
  json.Set("prompt_lookup_min", Json::Int(config.prompt_lookup_min));
  return json.Dump();
}

void AddSpeculativeFlags(CommandLine* line, SpeculativeConfig* config) {
  line->AddParsed(
      "--speculative-config", "JSON",
      [config](const std::string& text) { return ParseSpeculative(text, config); },
      [config] { return ShowSpeculative(*config); },
      "all of speculative decoding as one JSON object; the following flags win");
  line->AddChoice("--spec-method", {"auto", "none", "ngram", "dspark"}, &config->method,
                  "where drafts come from; auto: from draft layers, if the model has any");
  line->Add("--num-speculative-tokens", &config->num_speculative_tokens,
            "drafts of one verification, at most; 0: no speculation");
  line->AlsoFromEnvironment("num-speculative-tokens", "DEEPINFER_USE_NEXTN_DECODE");
  line->Add("--prompt-lookup-max", &config->prompt_lookup_max,
            "longest run of tokens that ngram looks up; 0: as the shortest, or 5");
  line->Add("--prompt-lookup-min", &config->prompt_lookup_min,
            "shortest run of tokens that ngram looks up; 0: as the longest");
  line->AddChoice("--spec-verify", {"shared", "rejection"}, &config->verify,
                  "shared changes no token, rejection keeps the distribution only");
}

}  // namespace

void AddEngineFlags(CommandLine* line, EngineConfig* config) {
  line->Group("Engine");
  line->AddChoice("--dtype", {"auto", "float32"}, &config->dtype,
                  "arithmetic; float32 is the reference everywhere");
  line->AddChoice("--device", {"auto", "cpu", "cuda"}, &config->device, "where the model runs");
  line->AddAuto("-c,--max-model-len", &config->max_model_len,
                "longest prompt and completion together; auto fits the memory");
  line->Add("--max-num-seqs", &config->max_num_seqs, "sequences that run at once");
  line->Add("--max-num-batched-tokens", &config->max_num_batched_tokens,
            "tokens of one step; prompts are cut into chunks to fit");
  line->Add("--long-prefill-token-threshold", &config->long_prefill_token_threshold,
            "most prompt tokens of one sequence in a step; 0: no own limit");
  line->Add("--prefill-max-sum-seqlen-k", &config->prefill_max_sum_seqlen_k,
            "cap on the summed key lengths of a step's prefill rows; 0: none");
  line->Add("--prefill-delay-steps-max", &config->prefill_delay_steps_max,
            "steps a prompt may be passed over before it goes first");
  line->Add("--block-size", &config->block_size, "tokens of a KV block, a multiple of 16");
  line->Add("--num-gpu-blocks-override,--num-kv-blocks", &config->num_kv_blocks,
            "blocks of the KV cache; 0: from --kv-cache-memory-bytes");
  line->AddBytes("--kv-cache-memory-bytes", &config->kv_cache_memory_bytes,
                 "size of the KV cache, for example 4GiB; 0: from the memory that is free");
  line->Add("--kv-cache-watermark", &config->kv_cache_watermark,
            "share of blocks in use above which no new sequence starts");
  line->AddSwitch("--enable-prefix-caching", &config->enable_prefix_caching,
                  "reuse the KV blocks of equal prompt prefixes");
  line->AddSwitch("--async-scheduling", &config->async_scheduling,
                  "plan the next step while one runs");
  line->AlsoFromEnvironment("async-scheduling", "DEEPINFER_ZERO_OVERHEAD_SCHEDULING");
  line->Add("--max-num-queued-reqs", &config->max_num_queued_reqs,
            "requests that may wait; more are refused with 429");
  line->Add("--max-num-queued-tokens", &config->max_num_queued_tokens,
            "prompt tokens that may wait; more are refused with 429");
  line->Add("--max-logprobs", &config->max_logprobs,
            "most top log-probabilities of a request; -1: the vocabulary");
  line->Add("--so-builder-cpus", &config->so_builder_cpus,
            "threads that compile the grammars of requests");
  line->AlsoFromEnvironment("so-builder-cpus", "DEEPINFER_SO_BUILDER_CPUS");
  line->Add("-t,--threads", &config->threads, "compute threads; 0: one per core");
  line->AddBytes("--weight-cache-bytes", &config->weight_cache_bytes,
                 "packed experts kept at once, for example 64GiB; 0: all, or what fits");
  line->AddChoice("--engram-io", {"auto", "io_uring", "pread"}, &config->engram_io,
                  "how rows of Engram tables are read");
  line->AddChoice("--cpu-isa", {"", "scalar", "avx2", "avx512", "amx"}, &config->cpu_isa,
                  "forces the CPU kernels of an instruction set");
  line->AddBytes("--state-cache-memory-bytes", &config->state_cache_memory_bytes,
                 "room for snapshots of row state, for prefix hits of models that have it");
  line->AddChoice("--yoco-prefill-truncation-mode", {"exact", "compact"},
                  &config->yoco_prefill_truncation_mode,
                  "compact: bounded replay in prefill; faster, not the same numbers");
  line->Add("--yoco-prefill-keep-tokens", &config->yoco_prefill_keep_tokens,
            "prompt tokens that run the whole stack in compact mode");
  line->Group("Speculative decoding");
  AddSpeculativeFlags(line, &config->speculative);
}

}  // namespace deepinfer
