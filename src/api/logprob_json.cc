#include "api/logprob_json.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/format.h"
#include "base/json.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

constexpr float kLogprobMin = -9999.0F;

void Separate(std::string* list) {
  if (!list->empty()) list->push_back(',');
}

bool Named(const TokenNames& names, TokenId id) {
  return names.naming == TokenNaming::kText && names.tokenizer != nullptr && id >= 0 &&
         id < names.tokenizer->vocab_size();
}

// Each maximal invalid prefix becomes one U+FFFD, as when Python decodes.
std::string ShownText(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8Step(bytes);
    const auto length = static_cast<size_t>(step.length);
    out += step.kind == Utf8Step::Kind::kCharacter ? bytes.substr(0, length) : kReplacementUtf8;
    bytes.remove_prefix(length);
  }
  return out;
}

void AppendBytes(std::string* out, const TokenNames& names, TokenId id) {
  if (names.tokenizer == nullptr || id < 0 || id >= names.tokenizer->vocab_size()) {
    out->append("null");
    return;
  }
  out->push_back('[');
  bool first = true;
  for (const char byte : names.tokenizer->Bytes(id)) {
    if (!std::exchange(first, false)) out->push_back(',');
    out->append(Format("{}", static_cast<unsigned char>(byte)));
  }
  out->push_back(']');
}

void AppendChatToken(std::string* out, const TokenNames& names, TokenId id, float logprob) {
  out->append("{\"token\":");
  AppendTokenName(out, names, id);
  out->append(",\"logprob\":");
  AppendLogprob(out, logprob);
  out->append(",\"bytes\":");
  AppendBytes(out, names, id);
}

void AppendPromptToken(std::string* out, const TokenNames& names, TokenId id, float logprob,
                       int rank) {
  out->append(Format("\"{}\":{{\"logprob\":", id));
  AppendLogprob(out, logprob);
  out->append(Format(",\"rank\":{},\"decoded_token\":", rank));
  AppendTokenName(out, {names.tokenizer, TokenNaming::kText}, id);
  out->push_back('}');
}

// {"<token>": logprob, ...}: the likeliest ones, and the chosen one where it is not among them.
// Two tokens of the same text leave the likelier one.
void AppendTopMap(std::string* out, const TokenNames& names, const TokenLogprob& item) {
  std::unordered_set<std::string> seen;
  out->push_back('{');
  const auto add = [&](TokenId id, float logprob) {
    std::string name;
    AppendTokenName(&name, names, id);
    const bool first = seen.empty();
    if (seen.contains(name)) return;
    if (!first) out->push_back(',');
    out->append(name);
    out->push_back(':');
    AppendLogprob(out, logprob);
    seen.insert(std::move(name));
  };
  bool chosen_among = false;
  for (const auto& [id, logprob] : item.top) {
    chosen_among = chosen_among || id == item.id;
    add(id, logprob);
  }
  if (!chosen_among) add(item.id, item.logprob);
  out->push_back('}');
}

int64_t CodePointStarts(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

}  // namespace

void AppendLogprob(std::string* out, float value) {
  // Neither NaN nor infinity has a word in JSON: both comparisons are false for NaN.
  const float shown = value >= kLogprobMin ? std::min(value, -kLogprobMin) : kLogprobMin;
  const std::string text = Format("{}", shown);
  out->append(text);
  if (text.find_first_of(".e") == std::string::npos) out->append(".0");
}

void AppendTokenName(std::string* out, const TokenNames& names, TokenId id) {
  if (Named(names, id)) {
    AppendJsonString(out, ShownText(names.tokenizer->Bytes(id)));
  } else {
    out->append(Format("\"token_id:{}\"", id));
  }
}

void AppendChatLogprob(std::string* out, const TokenNames& names, const TokenLogprob& item) {
  AppendChatToken(out, names, item.id, item.logprob);
  out->append(",\"top_logprobs\":[");
  bool first = true;
  for (const auto& [id, logprob] : item.top) {
    if (!std::exchange(first, false)) out->push_back(',');
    AppendChatToken(out, names, id, logprob);
    out->push_back('}');
  }
  out->append("]}");
}

void CompletionLogprobs::Append(const CompletionLogprobs& more) {
  if (more.empty()) return;
  const auto append = [](std::string* list, const std::string& items) {
    Separate(list);
    list->append(items);
  };
  append(&tokens, more.tokens);
  append(&token_logprobs, more.token_logprobs);
  append(&top_logprobs, more.top_logprobs);
  append(&text_offset, more.text_offset);
}

void CompletionLogprobs::AppendTo(std::string* out) const {
  out->append("{\"tokens\":[").append(tokens);
  out->append("],\"token_logprobs\":[").append(token_logprobs);
  out->append("],\"top_logprobs\":[").append(top_logprobs);
  out->append("],\"text_offset\":[").append(text_offset);
  out->append("]}");
}

void CompletionLogprobWriter::Add(TokenId id, const std::optional<TokenLogprob>& item,
                                  CompletionLogprobs* out) {
  Separate(&out->tokens);
  Separate(&out->token_logprobs);
  Separate(&out->top_logprobs);
  Separate(&out->text_offset);
  AppendTokenName(&out->tokens, names_, id);
  if (item.has_value()) {
    AppendLogprob(&out->token_logprobs, item->logprob);
    AppendTopMap(&out->top_logprobs, names_, *item);
  } else {
    out->token_logprobs.append("null");
    out->top_logprobs.append("null");
  }
  out->text_offset.append(Format("{}", offset_));
  if (names_.tokenizer == nullptr || id < 0 || id >= names_.tokenizer->vocab_size()) return;
  if (special_ == SpecialTokens::kHidden && names_.tokenizer->IsSpecial(id)) return;
  offset_ += CodePointStarts(names_.tokenizer->Bytes(id));
}

void AppendPromptLogprobs(std::string* out, const TokenNames& names,
                          std::span<const std::optional<TokenLogprob>> items) {
  out->push_back('[');
  bool first = true;
  for (const std::optional<TokenLogprob>& item : items) {
    if (!std::exchange(first, false)) out->push_back(',');
    if (!item.has_value()) {
      out->append("null");
      continue;
    }
    out->push_back('{');
    AppendPromptToken(out, names, item->id, item->logprob, item->rank);
    int rank = 0;
    for (const auto& [id, logprob] : item->top) {
      ++rank;
      if (id == item->id) continue;
      out->push_back(',');
      AppendPromptToken(out, names, id, logprob, rank);
    }
    out->push_back('}');
  }
  out->push_back(']');
}

void AppendIds(std::string* out, std::span<const TokenId> ids) {
  out->push_back('[');
  bool first = true;
  for (const TokenId id : ids) {
    if (!std::exchange(first, false)) out->push_back(',');
    out->append(Format("{}", id));
  }
  out->push_back(']');
}

}  // namespace deepinfer
