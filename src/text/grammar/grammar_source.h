// The limits of compiling a GrammarSource, and what differs between generation and checking.
// Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepinfer/request.h"

namespace deepinfer {

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
  size_t states_max = 200'000;   // values of a schema and rules, each
  // Of one expression: what its repetitions unroll to. Longer ones are counted, or refused.
  size_t expression_states_max = 20'000;
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
