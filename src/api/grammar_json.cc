#include "api/grammar_json.h"

#include <algorithm>
#include <utility>

#include "api/error.h"
#include "api/json_fields.h"
#include "base/format.h"

namespace deepinfer {
namespace {

using Kind = GrammarSource::Kind;
using Source = std::optional<GrammarSource>;

constexpr std::string_view kFields[] = {"response_format", "structured_outputs", "guided_json",
                                        "guided_regex",    "guided_choice",      "guided_grammar",
                                        "grammar",         "json_schema"};
constexpr size_t kChoicesMax = 10'000;

Status Wrong(const std::string& param, std::string_view wanted) {
  return Invalid(Format("\"{}\" must be {}", param, wanted)).WithParam(param);
}

// A schema as JSON, or as a text that holds it.
Result<Source> SchemaOf(const Json& value, const std::string& param) {
  if (value.is_object() || value.is_bool()) {
    return Source({Kind::kJsonSchema, value.Dump(), param});
  }
  if (!value.is_string()) return Wrong(param, "a JSON Schema: an object, true or false");
  if (value.string().empty()) return Source();
  const Result<Json> parsed = Json::Parse(value.string());
  if (!parsed.ok() || (!parsed->is_object() && !parsed->is_bool())) {
    return Wrong(param, "a JSON Schema, or a text that holds one");
  }
  return Source({Kind::kJsonSchema, parsed->Dump(), param});
}

Result<Source> TextOf(const Json& value, Kind kind, const std::string& param) {
  if (!value.is_string()) return Wrong(param, "a text");
  if (value.string().empty()) return Source();
  return Source({kind, value.string(), param});
}

Result<Source> ChoiceOf(const Json& value, const std::string& param) {
  const bool texts = value.is_array() && value.items().size() <= kChoicesMax &&
                     std::all_of(value.items().begin(), value.items().end(),
                                 [](const Json& item) { return item.is_string(); });
  if (!texts) return Wrong(param, Format("a list of at most {} texts", kChoicesMax));
  if (value.items().empty()) return Source();
  return Source({Kind::kChoice, value.Dump(), param});
}

// The members that describe the tags, without the type.
Result<Source> TagOf(const Json& value, const std::string& param) {
  if (value.is_string()) {
    const Result<Json> parsed = Json::Parse(value.string());
    if (!parsed.ok() || !parsed->is_object()) return Wrong(param, "structural tags as an object");
    return TagOf(*parsed, param);
  }
  const Json* structures = value.Find("structures");
  if (structures == nullptr || !structures->is_array()) {
    return Wrong(param, "an object with \"structures\" and \"triggers\"");
  }
  Json text = Json::Object();
  for (const char* key : {"structures", "triggers", "at_least_one", "stop_after_first"}) {
    if (const Json* member = value.Find(key)) text.Set(key, *member);
  }
  return Source({Kind::kStructuralTag, text.Dump(), param});
}

Result<Source> ReadOne(std::string_view key, const Json& value, const std::string& param) {
  if (key == "json" || key == "guided_json" || key == "json_schema") return SchemaOf(value, param);
  if (key == "regex" || key == "guided_regex") return TextOf(value, Kind::kRegex, param);
  if (key == "choice" || key == "guided_choice") return ChoiceOf(value, param);
  if (key == "structural_tag") return TagOf(value, param);
  if (key == "json_object") {
    if (!value.is_bool()) return Wrong(param, "true or false");
    return *value.AsBool() ? Source({Kind::kJsonObject, "", param}) : Source();
  }
  return TextOf(value, Kind::kBnf, param);
}

Status Add(Result<Source> more, Source* out) {
  if (!more.ok()) return more.status();
  if (!more->has_value()) return {};
  if (out->has_value()) {
    return Invalid(Format("\"{}\" and \"{}\" both say what the answer must look like: give one",
                          (*out)->param, (*more)->param))
        .WithParam((*more)->param);
  }
  *out = std::move(*more);
  return {};
}

// vLLM's object of one constraint and hints for its engines.
Result<Source> ReadStructuredOutputs(const Json& value) {
  if (!value.is_object()) return Wrong("structured_outputs", "an object");
  Source out;
  for (const auto& [key, member] : value.members()) {
    if (member.is_null()) continue;
    const std::string param = "structured_outputs." + key.substr(0, 64);
    constexpr std::string_view kKinds[] = {"json",    "regex",       "choice",
                                           "grammar", "json_object", "structural_tag"};
    if (std::find(std::begin(kKinds), std::end(kKinds), key) != std::end(kKinds)) {
      DI_TRY(Add(ReadOne(key, member, param), &out));
      continue;
    }
    const bool off = member.is_bool() && !*member.AsBool();
    if (off || key.starts_with("_backend")) continue;
    return Invalid(Format("\"{}\" is not supported; keys are json, regex, choice, grammar, "
                          "json_object and structural_tag",
                          param))
        .WithParam(param)
        .WithReason(kUnsupportedParameter);
  }
  return out;
}

}  // namespace

Result<Source> ReadFormat(const Json& format, const std::string& param) {
  const Json* type = format.Find("type");
  if (type == nullptr || !type->is_string()) return Wrong(param, "an object with a \"type\"");
  const std::string& name = type->string();
  if (name == "text") return Source();
  if (name == "json_object") {
    const Json* schema = FindField(format, "schema");  // llama.cpp
    if (schema != nullptr) return SchemaOf(*schema, param + ".schema");
    return Source({Kind::kJsonObject, "", param});
  }
  if (name == "json_schema") {
    const Json* nested = FindField(format, "json_schema");
    const std::string where = nested == nullptr ? param : param + ".json_schema";
    const Json* schema = FindField(nested == nullptr ? format : *nested, "schema");
    if (schema == nullptr || schema->is_string()) {
      return Wrong(where + ".schema", "a JSON Schema: an object, true or false");
    }
    return SchemaOf(*schema, where + ".schema");
  }
  if (name == "structural_tag") return TagOf(format, param);
  for (const auto& [kind, key] :
       {std::pair{"regex", "pattern"}, {"regex", "regex"}, {"grammar", "grammar"}}) {
    const Json* text = FindField(format, key);
    if (name == kind && text != nullptr) return ReadOne(kind, *text, param + "." + key);
  }
  return Invalid(Format("\"{}\" has the type {:?}; types are text, json_object, json_schema, regex "
                        "(with a \"pattern\"), grammar (with a \"grammar\") and structural_tag",
                        param, name.substr(0, 64)))
      .WithParam(param);
}

Status AddFormat(const Json& format, const std::string& param, Source* grammar) {
  return Add(ReadFormat(format, param), grammar);
}

Result<Source> ReadGrammar(const Json& body) {
  Source out;
  for (const std::string_view field : kFields) {
    const Json* value = FindField(body, field);
    if (value == nullptr) continue;
    const std::string param(field);
    if (field == "response_format") {
      DI_TRY(AddFormat(*value, param, &out));
    } else if (field == "structured_outputs") {
      DI_TRY(Add(ReadStructuredOutputs(*value), &out));
    } else {
      DI_TRY(Add(ReadOne(field, *value, param), &out));
    }
  }
  return out;
}

bool IsGrammarField(std::string_view key) {
  return std::find(std::begin(kFields), std::end(kFields), key) != std::end(kFields);
}

}  // namespace deepinfer
