// A byte-level tokenizer and a chat template small enough to check by hand: ids 0..255 are the
// bytes, then a few words and special tokens. For tests and fuzzers.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "api/dialect.h"
#include "base/check.h"

namespace deepinfer {

enum TinyToken : TokenId {
  kHello = 256,   // "hello"
  kSpaceA = 257,  // " a"
  kEmoji = 258,   // the first two bytes of U+1F600
  kBos = 259,
  kEnd = 260,
  kStart = 261,
  kTinyVocab = 265,  // three more words that the merges need
};

// kPlain knows no tools; the others write tools and calls as the family of that name does. With
// `thinking` true they open the reasoning.
enum class TinyTemplate { kPlain, kHermes, kLlama };

struct TinyText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  const PromptProfile* prompt_profile = nullptr;  // in place of the template

  DialectContext Context() const {
    DialectContext context;
    context.names = {"tiny", "alias"};
    context.tokenizer = tokenizer.get();
    context.chat_template = chat_template.get();
    context.prompt_profile = prompt_profile;
    context.output = ProbeOutputStyle(tokenizer.get(), chat_template.get(), prompt_profile);
    context.vocab = kTinyVocab;
    context.max_model_len = 100;
    context.created_s = 1700000000;
    return context;
  }
};

// The character that byte-level vocabularies write for a byte.
inline std::string ByteCharacter(int byte) {
  static constexpr auto kPlain = [](int b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  int code = byte;
  if (!kPlain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += kPlain(b) ? 0 : 1;
  }
  std::string out;
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
  return out;
}

inline std::string TinyTemplateSource(TinyTemplate kind) {
  if (kind == TinyTemplate::kPlain) {
    return "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role[0] }}:{{ m.content }}<|end|>"
           "{% endfor %}{% if add_generation_prompt %}<|start|>a:{% endif %}"
           "{% if note is defined %}{{ note }}{% endif %}";
  }
  const bool hermes = kind == TinyTemplate::kHermes;
  const std::string arguments = hermes ? "arguments" : "parameters";
  return "{{ bos_token }}{% if tools %}<|start|>s:{% for t in tools %}{{ t | tojson }}\n{% endfor "
         "%}"
         "<|end|>{% endif %}{% for m in messages %}<|start|>{{ m.role[0] }}:"
         "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
         "{{ m.content or '' }}{% for c in m.tool_calls or [] %}" +
         std::string(hermes ? "<tool_call>\n" : "") + "{\"name\": \"{{ c.function.name }}\", \"" +
         arguments + "\": {{ c.function.arguments | tojson }}}" + (hermes ? "\n</tool_call>" : "") +
         "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>a:"
         "{% if thinking %}<think>\n{% endif %}{% endif %}";
}

inline TinyText MakeTinyText(TinyTemplate kind = TinyTemplate::kPlain) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.vocab.push_back(ByteCharacter(byte));
  const auto text = [](std::string_view bytes) {
    std::string out;
    for (const char byte : bytes) out += ByteCharacter(static_cast<unsigned char>(byte));
    return out;
  };
  spec.vocab.push_back("hello");
  spec.vocab.push_back(text(" a"));
  spec.vocab.push_back(text("\xF0\x9F"));
  for (const char* word : {"<s>", "<|end|>", "<|start|>", "he", "hel", "hell"}) {
    spec.vocab.emplace_back(word);
  }
  spec.merges = {{"h", "e"},    {"he", "l"},      {"hel", "l"},
                 {"hell", "o"}, {text(" "), "a"}, {text("\xF0"), text("\x9F")}};
  for (const auto& [id, content] :
       {std::pair{kBos, "<s>"}, {kEnd, "<|end|>"}, {kStart, "<|start|>"}}) {
    AddedToken token;
    token.id = id;
    token.content = content;
    token.special = true;
    spec.added.push_back(token);
  }
  PreTokenizerStep bytes;
  bytes.kind = PreTokenizerStep::Kind::kByteLevel;
  spec.pre_tokenizers.push_back(bytes);
  spec.decoders.push_back({});
  spec.bos_id = kBos;
  spec.eos_id = kEnd;
  spec.prefix_ids = {kBos};
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(std::move(spec));
  DI_CHECK(tokenizer.ok(), "{}", tokenizer.status().message());
  Result<std::unique_ptr<ChatTemplate>> chat_template =
      ChatTemplate::Compile(TinyTemplateSource(kind));
  DI_CHECK(chat_template.ok(), "{}", chat_template.status().message());
  return {*std::move(tokenizer), *std::move(chat_template), nullptr};
}

}  // namespace deepinfer
