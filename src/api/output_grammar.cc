#include "api/output_grammar.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/error.h"
#include "base/format.h"
#include "text/prompt_profile.h"

namespace deepinfer {
namespace {

using Start = OutputMachineOptions::Start;
using Calls = OutputProfile::Calls;

// A text of the notation in bnf_parser.h.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += Format("\\x{:02x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Until(std::string_view end, std::string_view other = {}) {
  if (other.empty() || other == end) return "%until" + Quoted(end);
  return "%until(" + Quoted(end) + " " + Quoted(other) + ")";
}

std::string Value(const Json& schema) {
  if (schema.is_object()) return "%json" + schema.Dump();
  const bool none = schema.is_bool() && !*schema.AsBool();
  return none ? R"(%json{"not":{}})" : "%json{}";
}

std::string Embedded(const GrammarSource& source) {
  using Kind = GrammarSource::Kind;
  const char* name = "grammar";
  switch (source.kind) {
    case Kind::kJsonSchema: {
      const Result<Json> schema = Json::Parse(source.text);
      return Value(schema.ok() ? *schema : Json());
    }
    case Kind::kJsonObject:
      return R"(%json{"type":"object"})";
    case Kind::kRegex:
      name = "regex";
      break;
    case Kind::kChoice:
      name = "choice";
      break;
    case Kind::kStructuralTag:
      name = "structural_tag";
      break;
    case Kind::kBnf:
      break;
  }
  Json json = Json::Object();
  json.Set(name, Json::String(source.text));
  return "%grammar" + json.Dump();
}

// One tool of the request.
struct Tool {
  const std::string& name;
  const Json* parameters = nullptr;  // nullptr: none were given
  enum class Arguments { kAny, kSchema } arguments = Arguments::kAny;
};

std::vector<Tool> CallableTools(const ToolSet& tools) {
  std::vector<Tool> out;
  const auto holds = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (size_t i = 0; i < tools.names.size(); ++i) {
    const std::string& name = tools.names[i];
    if (!tools.allowed.empty() && !holds(tools.allowed, name)) continue;
    const bool kept = tools.choice == ToolSet::Choice::kRequired || holds(tools.strict, name);
    out.push_back({name, tools.tools.items()[i].Find("function")->Find("parameters"),
                   kept ? Tool::Arguments::kSchema : Tool::Arguments::kAny});
  }
  return out;
}

Json ArgumentsSchema(const Tool& tool) {
  if (tool.arguments == Tool::Arguments::kSchema && tool.parameters != nullptr) {
    Json schema = *tool.parameters;
    if (schema.Find("type") == nullptr) schema.Set("type", Json::String("object"));
    return schema;
  }
  Json any = Json::Object();
  any.Set("type", Json::String("object"));
  return any;
}

// {"name": "f", "arguments": {...}}, spaced as chat templates write it.
std::string JsonCall(const Tool& tool, std::string_view key) {
  return Quoted(Format("{{\"name\": \"{}\", \"{}\": ", tool.name, key)) + " " +
         Value(ArgumentsSchema(tool)) + " \"}\"";
}

// Calls as named parameters between tags: text parameters stand as they are, the others as JSON.
class TagWriter {
 public:
  explicit TagWriter(const PromptProfile& profile) : profile_(profile) {}

  Result<std::string> Block(const std::vector<Tool>& tools, const std::string& count) const {
    std::string calls;
    for (const Tool& tool : tools) {
      DI_ASSIGN(const std::string call, Call(tool));
      calls += (calls.empty() ? "" : " | ") + call;
    }
    return Open(profile_.calls_tag, ">\n") + " (" + calls + ")" + count + " " +
           Close(profile_.calls_tag, "");
  }

 private:
  std::string Open(std::string_view tag, std::string_view rest) const {
    return Quoted(Format("<{}{}{}", profile_.dsml, tag, rest));
  }
  std::string Close(std::string_view tag, std::string_view rest) const {
    return Quoted(Format("</{}{}>{}", profile_.dsml, tag, rest));
  }

  Result<std::string> Call(const Tool& tool) const {
    std::string out = Open(profile_.invoke_tag, Format(" name=\"{}\">\n", tool.name));
    const Json* properties =
        tool.parameters == nullptr ? nullptr : tool.parameters->Find("properties");
    if (tool.arguments == Tool::Arguments::kAny) {
      out += " (" + AnyParameter() + ")*";
    } else {
      DI_TRY(CheckKeywords(tool));
      std::string parameters;
      const std::vector<std::string> required = Required(tool);
      const auto add = [&](const std::string& name, const Json& schema) -> Status {
        const bool needed = std::find(required.begin(), required.end(), name) != required.end();
        DI_ASSIGN(const std::string parameter, Parameter(tool, name, schema));
        parameters += needed ? " " + parameter : " (" + parameter + ")?";
        return {};
      };
      static const std::vector<Json::Member> kNone;
      const std::vector<Json::Member>& named =
          properties == nullptr ? kNone : properties->members();
      for (const auto& [name, schema] : named) DI_TRY(add(name, schema));
      for (const std::string& name : required) {
        const bool known = properties != nullptr && properties->Find(name) != nullptr;
        if (!known) DI_TRY(add(name, Json::Bool(true)));
      }
      out += parameters;
      if (named.empty() && required.empty()) out += " " + Quoted(profile_.no_parameters);
    }
    return out + " " + Close(profile_.invoke_tag, "\n");
  }

  // Parameters are written one by one, so a schema must say what each of them is.
  static Status CheckKeywords(const Tool& tool) {
    constexpr std::string_view kKnown[] = {
        "type",        "properties", "required", "additionalProperties", "title",
        "description", "$defs",      "$schema",  "definitions",          "$id",
        "$comment",    "default",    "examples"};
    if (tool.parameters == nullptr) return {};
    for (const auto& [key, value] : tool.parameters->members()) {
      if (std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown)) continue;
      return Invalid(
                 Format("the parameters of the tool \"{}\" use {:?} beside \"properties\", which "
                        "cannot be enforced in the way this model writes calls",
                        tool.name, key.substr(0, 64)))
          .WithParam("tools");
    }
    return {};
  }

  static std::vector<std::string> Required(const Tool& tool) {
    std::vector<std::string> names;
    const Json* list = tool.parameters == nullptr ? nullptr : tool.parameters->Find("required");
    if (list == nullptr) return names;
    for (const Json& name : list->items()) {
      if (name.is_string()) names.push_back(name.string());
    }
    return names;
  }

  std::string ParameterAs(std::string_view name, std::string_view type,
                          const std::string& value) const {
    return Open(profile_.parameter_tag, Format(" name=\"{}\" string=\"{}\">", name, type)) + " " +
           value + " " + Close(profile_.parameter_tag, "\n");
  }

  // Text that no tag begins in: the reader would end it there.
  std::string FreeText() const { return Until(profile_.dsml); }

  std::string AnyParameter() const {
    return Open(profile_.parameter_tag, " name=\"") + R"( [^"<>\x00-\x1f]+ )" +
           "(\"\\\" string=\\\"true\\\">\" " + FreeText() +
           " | \"\\\" string=\\\"false\\\">\" %json{}) " + Close(profile_.parameter_tag, "\n");
  }

  Result<std::string> Parameter(const Tool& tool, const std::string& name,
                                const Json& schema) const {
    if (name.empty() || name.find_first_of("\"<>\n\r") != std::string::npos) {
      return Invalid(Format("the tool \"{}\" has a parameter {:?}, whose name this model cannot "
                            "write",
                            tool.name, name.substr(0, 64)))
          .WithParam("tools");
    }
    if (IsPlainText(schema)) return ParameterAs(name, "true", FreeText());
    const Json* texts = schema.Find("enum");
    if (texts != nullptr && IsTextChoice(schema, *texts)) {
      Json choice = Json::Object();
      choice.Set("choice", Json::String(texts->Dump()));
      return ParameterAs(name, "true", "%grammar" + choice.Dump());
    }
    return ParameterAs(name, "false", Value(Standalone(*tool.parameters, name, schema)));
  }

  // Says no more than that it is a text.
  static bool IsPlainText(const Json& schema) {
    const Json* type = schema.Find("type");
    if (type == nullptr || type->string() != "string") return false;
    constexpr std::string_view kRemarks[] = {"type",    "title",    "description", "default",
                                             "example", "examples", "$comment"};
    return std::all_of(schema.members().begin(), schema.members().end(), [&](const auto& member) {
      return std::find(std::begin(kRemarks), std::end(kRemarks), member.first) !=
             std::end(kRemarks);
    });
  }

  bool IsTextChoice(const Json& schema, const Json& texts) const {
    for (const auto& [key, value] : schema.members()) {
      if (key == "enum" || key == "title" || key == "description" || key == "default") continue;
      if (key != "type" || value.string() != "string") return false;
    }
    return !texts.items().empty() &&
           std::all_of(texts.items().begin(), texts.items().end(), [&](const Json& text) {
             return text.is_string() && text.string().find(profile_.dsml) == std::string::npos;
           });
  }

  // A property with what its references reach.
  static Json Standalone(const Json& root, const std::string& name, const Json& schema) {
    if (schema.Dump().find("\"$ref\"") == std::string::npos) return schema;
    std::string pointer = "/properties/";
    for (const char c : name) {
      const auto byte = static_cast<unsigned char>(c);
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '-';
      pointer += c == '~'   ? "~0"
                 : c == '/' ? "~1"
                 : plain    ? std::string(1, c)
                            : Format("%{:02X}", byte);
    }
    Json whole = root;
    constexpr const char* kId = "urn:deepinfer:arguments";
    whole.Set("$id", Json::String(kId));
    Json out = Json::Object();
    if (const Json* dialect = root.Find("$schema")) out.Set("$schema", *dialect);
    out.Set("$ref", Json::String(kId + ("#" + pointer)));
    out.Set("$defs", Json::Object()).Set("arguments", std::move(whole));
    return out;
  }

  const PromptProfile& profile_;
};

class AnswerWriter {
 public:
  AnswerWriter(const OutputPlan& output, const ToolSet& tools, const GrammarSource* content)
      : profile_(*output.style.profile),
        output_(output),
        tools_(tools),
        content_(content),
        callable_(CallableTools(tools)) {}

  // Whether the answer is the content and nothing else.
  bool plain() const { return !tools_.active() && Reasoning().empty(); }

  Result<std::string> Write() const {
    DI_ASSIGN(const std::string body, Body());
    return "root ::= " + Reasoning() + "(" + body + ")\n";
  }

 private:
  // The reader ends reasoning at a call as well, so none begins in it.
  std::string Reasoning() const {
    const bool parsed = tools_.active();
    const std::string rest = Until(profile_.think_end, parsed ? profile_.mark : "") + " " +
                             Quoted(profile_.think_end) + " " + kBreaks;
    if (profile_.think.empty()) return "";
    if (output_.machine.start == Start::kReasoning) return rest + " ";
    const bool may = output_.machine.start == Start::kContent && output_.style.think >= 0;
    return may ? "(" + Quoted(profile_.think) + " " + rest + ")? " : "";
  }

  Result<std::string> Body() const {
    if (!tools_.active()) return Embedded(*content_);
    DI_ASSIGN(const std::string calls, CallsAlone());
    if (tools_.choice == ToolSet::Choice::kRequired) return calls;
    if (content_ != nullptr) return Embedded(*content_) + " | " + calls;
    switch (profile_.calls) {
      case Calls::kMarkedJson: {
        const std::string text = Until(profile_.mark);
        DI_ASSIGN(const std::string call, OneCall());
        return single() ? text + " (" + call + ")?" : text + " (" + call + " " + text + ")*";
      }
      case Calls::kTags:
        return Until(profile_.mark) + " (" + calls + ")?";
      default:
        // What begins with a brace or a mark is read as a call.
        return "([^{\\[<\\x00-\\x20] " + Until(profile_.mark) + ")? | " + calls;
    }
  }

  // One call, with its marks.
  Result<std::string> OneCall() const {
    const bool marked = profile_.calls == Calls::kMarkedJson;
    std::string calls;
    for (const Tool& tool : callable_) {
      calls += (calls.empty() ? "" : " | ") + JsonCall(tool, marked ? "arguments" : "parameters");
    }
    if (!marked) return "(" + calls + ")";
    return Quoted(Format("{}\n", profile_.mark)) + " (" + calls + ") " +
           Quoted(Format("\n{}", profile_.mark_end));
  }

  Result<std::string> CallsAlone() const {
    if (profile_.calls == Calls::kTags) {
      const PromptProfile* tags = FindPromptProfile(profile_.name);
      if (tags == nullptr) return Internal("a profile of calls in tags has no tags");
      DI_ASSIGN(const std::string block, TagWriter(*tags).Block(callable_, single() ? "" : "+"));
      return kBreaks + (" " + block);
    }
    DI_ASSIGN(const std::string call, OneCall());
    const char* between = profile_.calls == Calls::kMarkedJson ? "\"\\n\"" : "\"; \"";
    return single() ? call : call + " (" + between + " " + call + ")*";
  }

  bool single() const { return tools_.calls_max == 1; }

  static constexpr const char* kBreaks = "(\"\\n\" \"\\n\"?)?";
  const OutputProfile& profile_;
  const OutputPlan& output_;
  const ToolSet& tools_;
  const GrammarSource* const content_;
  const std::vector<Tool> callable_;
};

}  // namespace

Status ConstrainOutput(const OutputPlan& output, const ToolSet& tools,
                       std::optional<GrammarSource>* grammar) {
  const bool content = grammar->has_value();
  if ((!content && !tools.constrains()) || output.style.profile == nullptr) return {};
  const AnswerWriter writer(output, tools, content ? &**grammar : nullptr);
  if (writer.plain()) return {};
  GrammarSource whole;
  whole.kind = GrammarSource::Kind::kBnf;
  whole.param = content ? (*grammar)->param : "tools";
  DI_ASSIGN(whole.text, writer.Write());
  *grammar = std::move(whole);
  return {};
}

}  // namespace deepinfer
