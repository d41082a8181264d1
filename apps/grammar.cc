// `deepinfer grammar`: what a schema or grammar enforces, and where given texts leave it.
#include "text/grammar/grammar.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

constexpr size_t kInstanceBytesMax = size_t{256} << 20;

struct InstanceVerdict {
  std::string path;
  bool accepted = false;
  size_t offset = 0;  // of the first byte that cannot stand there; the length when one is missing
};

// Refuses what has more than `bytes_max`, an endless device too.
Result<std::string> ReadText(const std::string& path, size_t bytes_max) {
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return NotFound(Format("{}: {}", path, std::strerror(errno)));
  std::string text;
  char chunk[65536];
  for (size_t n; text.size() <= bytes_max && (n = std::fread(chunk, 1, sizeof chunk, file)) > 0;) {
    text.append(chunk, n);
  }
  const bool failed = std::ferror(file) != 0;
  if (file != stdin) std::fclose(file);
  if (failed) return Invalid(Format("{} cannot be read", path));
  if (text.size() > bytes_max) {
    return Invalid(
        Format("{} has more than {} bytes, which are the most that is read", path, bytes_max));
  }
  return text;
}

InstanceVerdict Judge(const std::shared_ptr<const CompiledGrammar>& grammar,
                      const std::string& path, const std::string& text) {
  GrammarMatcher matcher(grammar, nullptr, 0);
  InstanceVerdict verdict;
  verdict.path = path;
  verdict.offset = matcher.AcceptText(text);
  verdict.accepted = verdict.offset == text.size() && matcher.IsComplete();
  return verdict;
}

void PrintJson(const Status& supported, const std::vector<InstanceVerdict>& verdicts) {
  Json out = Json::Object();
  out.Set("supported", Json::Bool(supported.ok()));
  out.Set("reason", supported.ok() ? Json() : Json::String(supported.message()));
  Json& instances = out.Set("instances", Json::Array());
  for (const InstanceVerdict& verdict : verdicts) {
    Json& instance = instances.Push(Json::Object());
    instance.Set("file", Json::String(verdict.path));
    instance.Set("accepted", Json::Bool(verdict.accepted));
    instance.Set("offset", Json::Int(static_cast<int64_t>(verdict.offset)));
  }
  std::printf("%s\n", out.Dump().c_str());
}

void PrintText(const Status& supported, const std::vector<InstanceVerdict>& verdicts) {
  std::printf("%s%s\n", supported.ok() ? "supported: all of it is enforced" : "not supported: ",
              supported.message().c_str());
  for (const InstanceVerdict& verdict : verdicts) {
    if (verdict.accepted) {
      std::printf("%s: accepted\n", verdict.path.c_str());
    } else {
      std::printf("%s: refused at byte %zu\n", verdict.path.c_str(), verdict.offset);
    }
  }
}

Result<GrammarSource> ReadSource(const std::string& schema, const std::string& kind) {
  const std::pair<std::string_view, GrammarSource::Kind> kinds[] = {
      {"schema", GrammarSource::Kind::kJsonSchema},
      {"regex", GrammarSource::Kind::kRegex},
      {"grammar", GrammarSource::Kind::kBnf},
      {"choice", GrammarSource::Kind::kChoice},
      {"structural-tag", GrammarSource::Kind::kStructuralTag}};
  GrammarSource source;
  for (const auto& [name, value] : kinds) {
    if (name == kind) source.kind = value;
  }
  DI_ASSIGN(source.text, ReadText(schema, GrammarOptions().source_bytes_max));
  return source;
}

int RunCheck(int argc, char** argv) {
  std::string schema;
  std::string kind = "schema";
  std::vector<std::string> instances;
  bool as_json = false;
  CommandLine line("deepinfer grammar check",
                   "tell whether a schema can be enforced, and which texts keep to it");
  line.Add("--schema,-s,schema", &schema, "file with the JSON Schema or other grammar; -: stdin");
  line.Add("--instance,-i", &instances, "file with a text to check; may be repeated");
  line.AddChoice("--kind", {"schema", "regex", "grammar", "choice", "structural-tag"}, &kind,
                 "what the file holds; grammar is GBNF or EBNF");
  line.AddSwitch("--json", &as_json, "print {\"supported\", \"reason\", \"instances\"}");
  line.Footer(
      "exit code: 0 when the schema is supported, instances accepted or not, and always with\n"
      "--json; 1 when it is not or a file cannot be read.\n"
      "Any JSON whitespace is accepted in instances, and any spelling of a number.");
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  if (schema.empty()) return FailUsage("grammar check", Invalid("--schema FILE is wanted"));
  const Result<GrammarSource> source = ReadSource(schema, kind);
  if (!source.ok()) return Fail("grammar check", source.status());
  const auto grammar = CompiledGrammar::Compile(*source, GrammarOptions::ForChecking());
  std::vector<InstanceVerdict> verdicts;
  if (grammar.ok()) {
    for (const std::string& path : instances) {
      const Result<std::string> text = ReadText(path, kInstanceBytesMax);
      if (!text.ok()) return Fail("grammar check", text.status());
      verdicts.push_back(Judge(*grammar, path, *text));
    }
  }
  if (as_json) {
    PrintJson(grammar.status(), verdicts);
  } else {
    PrintText(grammar.status(), verdicts);
  }
  return grammar.ok() || as_json ? kExitOk : ExitCodeOf(grammar.status());
}

constexpr Command kGrammarCommands[] = {
    {"check", "what a schema enforces, and where texts leave it", RunCheck},
};

}  // namespace

int RunGrammar(int argc, char** argv) {
  return Dispatch("deepinfer grammar", kGrammarCommands, argc, argv);
}

}  // namespace deepinfer
