#include "api/models.h"

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

}  // namespace

Json ModelList(const DialectContext& context) {
  Json list = Json::Object();
  list.Set("object", Json::String("list"));
  Json& data = list.Set("data", Json::Array());
  for (const std::string& name : context.names) data.Push(Card(context, name));
  return list;
}

Result<Json> ModelCard(const DialectContext& context, std::string_view name) {
  for (const auto* names : {&context.names, &context.aliases}) {
    for (const std::string& served : *names) {
      if (served == name) return Card(context, served);
    }
  }
  return NotFound(Format("the model \"{}\" is not served here", name.substr(0, 256)))
      .WithParam("model")
      .WithReason(kModelNotFound);
}

}  // namespace deepinfer
