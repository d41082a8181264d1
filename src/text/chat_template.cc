#include "text/chat_template.h"

#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"

namespace deepinfer {

struct ChatTemplate::Impl {
  jinja::Program program;
  ChatTemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(std::string_view source,
                                                            const ChatTemplateLimits& limits) {
  DI_ASSIGN(jinja::Program program, jinja::ParseTemplate(source, limits));
  auto impl = std::make_unique<Impl>();
  impl->program = std::move(program);
  impl->limits = limits;
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

Result<RenderedPrompt> ChatTemplate::Render(const Json& variables, const Json* untrusted) const {
  jinja::Runtime runtime(&impl_->program, impl_->limits);
  bool ok = true;
  if (untrusted != nullptr) {
    for (const Json::Member& member : untrusted->members()) {
      ok = ok && runtime.Define(member.first, member.second, jinja::Trust::kUntrusted);
    }
  }
  for (const Json::Member& member : variables.members()) {
    const bool outside = member.first == "tools" || member.first == "documents";
    ok = ok && (member.first == "messages"
                    ? runtime.DefineMessages(member.first, member.second)
                    : runtime.Define(member.first, member.second,
                                     outside ? jinja::Trust::kUntrusted : jinja::Trust::kTrusted));
  }
  jinja::MarkedText text;
  if (!ok || !runtime.Run(&text)) return runtime.error();
  RenderedPrompt prompt;
  prompt.trusted = std::move(text).TakeTrusted();
  prompt.text = std::move(text).TakeBytes();
  return prompt;
}

bool ChatTemplate::wants_content_parts() const { return impl_->program.iterates_content; }

bool ChatTemplate::takes_content_string() const {
  return !impl_->program.iterates_content || impl_->program.tests_content_string;
}

}  // namespace deepinfer
