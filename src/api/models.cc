#include "api/models.h"

#include <ctime>

#include "api/error.h"
#include "base/format.h"

namespace deepinfer {
namespace {

Json Card(const DialectContext& context, const std::string& name) {
  const std::string& root = context.names.front();
  Json card = Json::Object();
  card.Set("id", Json::String(name));
  card.Set("object", Json::String("model"));
  card.Set("created", Json::Int(context.created_s));
  card.Set("owned_by", Json::String("deepinfer"));
  card.Set("root", Json::String(root));
  card.Set("parent", name == root ? Json() : Json::String(root));
  card.Set("max_model_len", Json::Int(context.max_model_len));
  card.Set("permission", Json::Array());
  return card;
}

// "2023-11-14T22:13:20Z".
std::string Rfc3339(int64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  const size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, size);
}

Json AnthropicCard(const DialectContext& context, const std::string& name) {
  Json card = Json::Object();
  card.Set("type", Json::String("model"));
  card.Set("id", Json::String(name));
  card.Set("display_name", Json::String(name));
  card.Set("created_at", Json::String(Rfc3339(context.created_s)));
  return card;
}

// Every name and alias that requests may give.
Result<std::string> ServedName(const DialectContext& context, std::string_view name) {
  for (const auto* names : {&context.names, &context.aliases}) {
    for (const std::string& served : *names) {
      if (served == name) return served;
    }
  }
  return NotFound(Format("the model \"{}\" is not served here", name.substr(0, 256)))
      .WithParam("model")
      .WithReason(kModelNotFound);
}

}  // namespace

Json ModelList(const DialectContext& context) {
  Json list = Json::Object();
  list.Set("object", Json::String("list"));
  Json& data = list.Set("data", Json::Array());
  for (const std::string& name : context.names) data.Push(Card(context, name));
  return list;
}

Result<Json> ModelCard(const DialectContext& context, std::string_view name) {
  DI_ASSIGN(const std::string served, ServedName(context, name));
  return Card(context, served);
}

Json AnthropicModelList(const DialectContext& context) {
  Json list = Json::Object();
  Json& data = list.Set("data", Json::Array());
  for (const std::string& name : context.names) data.Push(AnthropicCard(context, name));
  list.Set("has_more", Json::Bool(false));
  list.Set("first_id", Json::String(context.names.front()));
  list.Set("last_id", Json::String(context.names.back()));
  return list;
}

Result<Json> AnthropicModelCard(const DialectContext& context, std::string_view name) {
  DI_ASSIGN(const std::string served, ServedName(context, name));
  return AnthropicCard(context, served);
}

}  // namespace deepinfer
