// Chat templates: an interpreter of the Jinja subset that popular models use, sandboxed, with
// limits on steps, output and nesting. Compiled once; Render is const and safe on any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deepinfer/status.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct ChatTemplateLimits {
  size_t source_bytes_max = size_t{1} << 20;
  size_t output_bytes_max = size_t{64} << 20;
  int64_t steps_max = 20'000'000;
  int depth_max = 100;
};

struct RenderedPrompt {
  std::string text;
  std::vector<TrustedSpan> trusted;  // bytes that the template wrote itself, sorted, disjoint
};

class ChatTemplate {
 public:
  // Errors carry line and column.
  static Result<std::unique_ptr<ChatTemplate>> Compile(std::string_view source,
                                                       const ChatTemplateLimits& limits = {});
  ~ChatTemplate();

  // `variables`: an object (messages, tools, add_generation_prompt, bos_token, ... as JSON).
  // Strings under messages/tools/documents are untrusted, except the names of well-known roles;
  // template text and the other variables are trusted. `untrusted`, when given, is an object of
  // further variables, all of whose strings are untrusted; `variables` wins over it.
  // raise_exception(msg) becomes an Invalid status with msg.
  Result<RenderedPrompt> Render(const Json& variables, const Json* untrusted = nullptr) const;
  // True when the template iterates message.content as a list of parts.
  bool wants_content_parts() const;
  // True when it also takes message.content as a string (always, unless it only iterates parts).
  bool takes_content_string() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
