#include "api/embeddings.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <cstring>
#include <utility>
#include <vector>

#include "api/call_options.h"
#include "api/error.h"
#include "api/json_fields.h"
#include "api/prompt_list.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr std::string_view kFields[] = {"input", "encoding_format", "dimensions"};
enum class Encoding { kFloat, kBase64 };

Status Unsupported(const char* key, const std::string& detail) {
  return Invalid(Format("\"{}\" is not supported{}", key, detail))
      .WithParam(key)
      .WithReason(kUnsupportedParameter);
}

void AppendBase64(const void* data, size_t size, std::string* out) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; i += 3) {
    const size_t count = std::min<size_t>(3, size - i);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (k < count ? bytes[i + k] : 0U);
    for (size_t k = 0; k < 4; ++k) {
      out->push_back(k <= count ? kDigits[word >> (18 - 6 * k) & 63] : '=');
    }
  }
}

void Normalize(std::vector<float>* values) {
  double sum = 0;
  for (const float x : *values) sum += static_cast<double>(x) * static_cast<double>(x);
  const auto scale = static_cast<float>(1.0 / std::sqrt(std::max(sum, 1e-24)));
  for (float& x : *values) x *= scale;
}

class EmbeddingsResponse final : public ResponseStream {
 public:
  EmbeddingsResponse(std::string model, size_t inputs, Encoding encoding,
                     std::vector<std::string> warnings)
      : model_(std::move(model)),
        embeddings_(inputs),
        encoding_(encoding),
        warnings_(std::move(warnings)) {}

  void OnDelta(int prompt, OutputDelta delta, std::string* /*out*/) override {
    if (!delta.embedding.empty()) {
      embeddings_[static_cast<size_t>(prompt)] = std::move(delta.embedding);
    }
    if (delta.finish != FinishReason::kNone) prompt_tokens_ += delta.usage.prompt_tokens;
  }

  void Finish(std::string* out) override {
    out->append("{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < embeddings_.size(); ++i) {
      out->append(
          Format("{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":", i == 0 ? "" : ",", i));
      Write(&embeddings_[i], out);
      out->push_back('}');
    }
    out->append("],\"model\":");
    AppendJsonString(out, model_);
    out->append(Format(",\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{}}}", prompt_tokens_,
                       prompt_tokens_));
    if (!warnings_.empty()) {
      Json list = Json::Array();
      for (const std::string& warning : warnings_) list.Push(Json::String(warning));
      out->append(",\"warnings\":" + list.Dump());
    }
    out->push_back('}');
  }

  void Fail(const Status& /*status*/, std::string* /*out*/) override {}

 private:
  // As little-endian 32-bit values in base64, which is what OpenAI's clients ask for.
  void Write(std::vector<float>* values, std::string* out) const {
    Normalize(values);
    if (encoding_ == Encoding::kBase64) {
      out->push_back('"');
      AppendBase64(values->data(), values->size() * sizeof(float), out);
      out->push_back('"');
      return;
    }
    out->push_back('[');
    for (size_t i = 0; i < values->size(); ++i) {
      out->append(Format("{}{}", i == 0 ? "" : ",", (*values)[i]));
    }
    out->push_back(']');
  }

  const std::string model_;
  std::vector<std::vector<float>> embeddings_;
  const Encoding encoding_;
  const std::vector<std::string> warnings_;
  int64_t prompt_tokens_ = 0;
};

Result<Encoding> ReadEncoding(const Json& body) {
  std::string encoding = "float";
  DI_TRY(ReadString(body, "encoding_format", 16, &encoding));
  if (encoding == "float") return Encoding::kFloat;
  if (encoding == "base64") return Encoding::kBase64;
  return WrongKind("encoding_format", "\"float\" or \"base64\"");
}

}  // namespace

Result<DialectCall> ParseEmbeddings(const Json& body, const DialectContext& context) {
  DI_ASSIGN(const CallOptions options, ReadCallOptions(body, context, kFields));
  if (options.mode == DialectCall::Mode::kStream) return Unsupported("stream", " in this dialect");
  if (context.embedding_size == 0) {
    return Unsupported("input", ": this model gives no embeddings");
  }
  std::optional<int64_t> dimensions;
  DI_TRY(ReadInt(body, "dimensions", 1, INT32_MAX, &dimensions));
  if (dimensions.has_value() && *dimensions != context.embedding_size) {
    return Unsupported("dimensions", Format(" other than {}", context.embedding_size));
  }
  DI_ASSIGN(const Encoding encoding, ReadEncoding(body));
  DI_ASSIGN(std::vector<PromptInput> prompts, ReadPrompts(body, "input", context));
  SamplingParams sampling;
  sampling.max_tokens = 1;
  sampling.temperature = 0;
  sampling.detokenize = false;
  DialectCall call;
  for (PromptInput& prompt : prompts) {
    DI_ASSIGN(Request request,
              MakeRequest(std::move(prompt.ids), sampling, options, context, "input"));
    request.embed = true;
    call.requests.push_back(std::move(request));
  }
  call.response =
      std::make_unique<EmbeddingsResponse>(context.names.empty() ? "" : context.names.front(),
                                           call.requests.size(), encoding, options.warnings);
  return call;
}

}  // namespace deepinfer
