// Tokens to syntax tree, by the grammar of Jinja2 3.1 without the tags that load other templates.
// The result is immutable and may be shared by threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/chat_template.h"
#include "text/jinja/ast.h"

namespace deepinfer::jinja {

struct Program {
  std::string source;  // normalised; errors point into it
  Body body;
  std::vector<std::string> symbols;  // names by Symbol
  // What the template does with message contents, seen in its text.
  bool iterates_content = false;      // a loop over message.content
  bool tests_content_string = false;  // `content is string`
};

// Symbols that the interpreter itself refers to; the parser numbers them first.
enum FixedSymbol : Symbol {
  kSymbolLoop,
  kSymbolCaller,
  kSymbolVarargs,
  kSymbolKwargs,
  kFixedSymbols
};

Result<Program> ParseTemplate(std::string_view source, const ChatTemplateLimits& limits);

}  // namespace deepinfer::jinja
