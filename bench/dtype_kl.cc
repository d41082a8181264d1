// How far the default arithmetic is from float32 on one checkpoint: mean KL divergence of the
// next-token distributions and agreement of the likeliest token, over a text.
//   dtype_kl MODEL TEXT [tokens=4096] [window=512]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/mapped_file.h"
#include "models/checkpoint.h"
#include "models/registry.h"
#include "tests/harness/host_rows.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

struct Side {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
};

Result<Side> Open(const Checkpoint& checkpoint, ComputeDtype dtype) {
  BackendOptions options;
  options.dtype = dtype;
  options.cpu_isa = GetEnv("DEEPINFER_CPU_ISA").value_or("");
  Side side;
  DI_ASSIGN(side.backend, CreateBackend(options));
  DI_ASSIGN(side.model, LoadModel(checkpoint, side.backend.get()));
  return side;
}

// Log-probabilities of every position of a window, computed from an empty cache.
std::vector<float> Logprobs(Side* side, const std::vector<int32_t>& tokens) {
  const int vocab = side->model->info().vocab;
  const auto count = static_cast<int>(tokens.size());
  HostRows rows(side->backend.get(), side->model->cache_layout(), 1, count);
  const HostRows::Query query = {0, 0, tokens};
  const float* hidden = side->model->Forward(rows.Step({&query, 1}));
  std::vector<int32_t> index(tokens.size());
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i);
  std::vector<float> out(tokens.size() * static_cast<size_t>(vocab));
  side->model->Head(hidden, index.data(), count, out.data());
  for (int i = 0; i < count; ++i) {
    float* row = out.data() + static_cast<int64_t>(i) * vocab;
    const float max = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v] - max));
    const auto lse = static_cast<float>(static_cast<double>(max) + std::log(sum));
    for (int v = 0; v < vocab; ++v) row[v] -= lse;
  }
  return out;
}

struct Totals {
  double kl = 0;
  int64_t agree = 0, tokens = 0;
};

void Compare(const std::vector<float>& exact, const std::vector<float>& fast, int vocab,
             Totals* totals) {
  for (size_t at = 0; at < exact.size(); at += static_cast<size_t>(vocab)) {
    const float* p = exact.data() + at;
    const float* q = fast.data() + at;
    double kl = 0;
    for (int v = 0; v < vocab; ++v) {
      kl += std::exp(static_cast<double>(p[v])) * static_cast<double>(p[v] - q[v]);
    }
    totals->kl += kl;
    totals->agree += std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q;
    ++totals->tokens;
  }
}

Status Run(const char* model, const char* text_path, size_t tokens_max, size_t window) {
  DI_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model));
  DI_ASSIGN(TokenizerSpec spec, checkpoint->TakeTokenizer());
  DI_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(std::move(spec)));
  DI_ASSIGN(const MappedFile text, MappedFile::Open(text_path));
  const std::string_view head(reinterpret_cast<const char*>(text.bytes().data()),
                              std::min(text.size(), tokens_max * 8));
  std::vector<TokenId> ids = tokenizer->Encode(head);
  ids.resize(std::min(ids.size(), tokens_max));
  DI_ASSIGN(Side exact, Open(*checkpoint, ComputeDtype::kFloat32));
  DI_ASSIGN(Side fast, Open(*checkpoint, ComputeDtype::kAuto));
  const int vocab = exact.model->info().vocab;
  Totals totals;
  for (size_t at = 0; at < ids.size(); at += window) {
    const auto end = ids.begin() + static_cast<ptrdiff_t>(std::min(ids.size(), at + window));
    const std::vector<int32_t> part(ids.begin() + static_cast<ptrdiff_t>(at), end);
    Compare(Logprobs(&exact, part), Logprobs(&fast, part), vocab, &totals);
  }
  const auto count = static_cast<double>(totals.tokens);
  std::printf("isa %s  tokens %lld  mean KL %.5f  top-1 agreement %.2f %%\n",
              fast.backend->info().isa.c_str(), static_cast<long long>(totals.tokens),
              totals.kl / count, 100.0 * static_cast<double>(totals.agree) / count);
  return {};
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: dtype_kl MODEL TEXT [tokens=4096] [window=512]\n");
    return 2;
  }
  const size_t tokens = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 4096;
  const size_t window = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 512;
  const deepinfer::Status status =
      deepinfer::Run(argv[1], argv[2], tokens, std::max<size_t>(window, 1));
  if (!status.ok()) std::fprintf(stderr, "dtype_kl: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
