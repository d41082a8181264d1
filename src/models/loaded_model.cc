#include "models/loaded_model.h"

#include <future>
#include <utility>

#include "base/logging.h"
#include "models/checkpoint.h"

namespace deepinfer {
namespace {

struct TextParts {
  Status status;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
};

TextParts BuildText(std::optional<TokenizerSpec> spec, const std::string& template_source) {
  TextParts parts;
  if (spec.has_value()) {
    Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*std::move(spec));
    if (!tokenizer.ok()) {
      parts.status = tokenizer.status();
      return parts;
    }
    parts.tokenizer = std::move(tokenizer).value();
  }
  if (!template_source.empty()) {
    Result<std::unique_ptr<ChatTemplate>> compiled = ChatTemplate::Compile(template_source);
    if (!compiled.ok()) {
      parts.status = compiled.status();
      return parts;
    }
    parts.chat_template = std::move(compiled).value();
  }
  return parts;
}

// A checkpoint whose tokenizer lacks the family's control tokens answers no chat.
const PromptProfile* ProfileOf(const std::string& architecture, const Tokenizer* tokenizer) {
  const PromptProfile* profile = FindPromptProfile(architecture);
  if (profile == nullptr || tokenizer == nullptr) return nullptr;
  const Status usable = CheckPromptProfile(*profile, *tokenizer);
  if (usable.ok()) return profile;
  LogWarning("chat is not available: {}", usable.message());
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> OpenModel(const LoadOptions& options) {
  DI_ASSIGN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(options.path));
  std::optional<TokenizerSpec> spec;
  if (checkpoint->tokenizer().has_value()) {
    DI_ASSIGN(spec, checkpoint->TakeTokenizer());
  }
  std::string source =
      options.chat_template.empty() ? checkpoint->chat_template() : options.chat_template;

  // The tokenizer needs no weight and the weights need no tokenizer: built side by side.
  auto build = [spec = std::move(spec), source = std::move(source)]() mutable {
    return BuildText(std::move(spec), source);
  };
  std::future<TextParts> text = options.tasks != nullptr
                                    ? options.tasks->Async(std::move(build))
                                    : std::async(std::launch::deferred, std::move(build));

  auto loaded = std::make_unique<LoadedModel>();
  loaded->file = checkpoint->shared_file();
  Status weights;
  if (Result<std::unique_ptr<Backend>> backend = CreateBackend(options.backend); !backend.ok()) {
    weights = backend.status();
  } else {
    loaded->backend = std::move(backend).value();
    Result<std::unique_ptr<Model>> model =
        LoadModel(*checkpoint, loaded->backend.get(), options.progress);
    if (!model.ok()) {
      weights = model.status();
    } else {
      loaded->model = std::move(model).value();
    }
  }
  TextParts parts = text.get();
  DI_TRY(std::move(weights));
  DI_TRY(std::move(parts.status));
  loaded->tokenizer = std::move(parts.tokenizer);
  loaded->chat_template = std::move(parts.chat_template);
  if (loaded->chat_template == nullptr) {
    loaded->prompt_profile = ProfileOf(checkpoint->config().architecture, loaded->tokenizer.get());
  }
  loaded->generation = checkpoint->config().generation;
  return loaded;
}

}  // namespace deepinfer
