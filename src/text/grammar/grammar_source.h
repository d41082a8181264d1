// What a request asks its output to look like, as text, and the limits of compiling it.
// Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace deepinfer {

struct GrammarSource {
  enum class Kind {
    kJsonSchema,     // `text` is a JSON Schema (an object or true/false)
    kJsonObject,     // any JSON object; `text` is not read
    kRegex,          // `text` is an ECMA-262 regular expression; the whole output matches it
    kBnf,            // `text` is GBNF or EBNF with a rule named "root"
    kChoice,         // `text` is a JSON list of strings; the output is one of them
    kStructuralTag,  // `text` is {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;

  bool operator==(const GrammarSource&) const = default;
};

struct GrammarOptions {
  // Whitespace between the parts of JSON that the output may hold: none at all; a space, or a line
  // break and its indentation; or whatever JSON allows.
  enum class Whitespace { kCompact, kBounded, kAny } whitespace = Whitespace::kBounded;
  // Numbers under constraints: plain digits only, which never leads into a dead end, or every
  // spelling that JSON has, judged where the number ends (for checking, not for generation).
  // Likewise escapes of characters that need none: only in free texts, or everywhere.
  enum class Numbers { kPlain, kAnySpelling } numbers = Numbers::kPlain;
  // `format` always binds, or only where the schema's dialect ($schema) says so: not in 2019-09
  // and 2020-12, which make it a remark.
  enum class Formats { kAlways, kByDialect } formats = Formats::kAlways;

  size_t source_bytes_max = size_t{1} << 20;
  size_t states_max = 200'000;   // automaton states, schema nodes and rules, each
  int depth_max = 128;           // nesting of the source and of the JSON it describes
  int64_t work_max = 4'000'000;  // steps of compilation: bounds its time to a second or so

  // For checking given documents.
  static GrammarOptions ForChecking() {
    GrammarOptions options;
    options.whitespace = Whitespace::kAny;
    options.numbers = Numbers::kAnySpelling;
    options.formats = Formats::kByDialect;
    return options;
  }
};

}  // namespace deepinfer
