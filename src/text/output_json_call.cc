#include "text/output_json_call.h"

#include <algorithm>

#include "base/format.h"
#include "base/json.h"

namespace deepinfer {
namespace {

bool IsBlank(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

}  // namespace

void AppendPart(OutputPart::Kind kind, std::string_view text, std::vector<OutputPart>* parts) {
  using Kind = OutputPart::Kind;
  const bool flows =
      kind == Kind::kReasoning || kind == Kind::kText || kind == Kind::kCallArguments;
  if (flows && text.empty()) return;
  if (flows && !parts->empty() && parts->back().kind == kind) {
    parts->back().text += text;
  } else {
    parts->push_back({kind, std::string(text)});
  }
}

void AppendParts(std::vector<OutputPart>&& more, std::vector<OutputPart>* parts) {
  for (OutputPart& part : more) AppendPart(part.kind, part.text, parts);
}

void JsonCallScanner::Begin(const std::vector<std::string>* names) {
  *this = JsonCallScanner();
  names_ = names;
}

JsonCallScanner::Result JsonCallScanner::Push(char byte, std::vector<OutputPart>* out) {
  if (!begun_) raw_.push_back(byte);
  return Step(byte, out);
}

JsonCallScanner::Result JsonCallScanner::Step(char byte, std::vector<OutputPart>* out) {
  switch (phase_) {
    case Phase::kOpen:
      if (byte == '{') phase_ = Phase::kKey;
      return byte == '{' || byte == '[' || IsBlank(byte) ? Result::kRunning : Broken(out);
    case Phase::kKey:
      if (byte == '}') return End(out);
      if (byte == '"') {
        phase_ = Phase::kKeyText;
        text_.assign(1, '"');
        return Result::kRunning;
      }
      return byte == ',' || IsBlank(byte) ? Result::kRunning : Broken(out);
    case Phase::kKeyText:
      text_.push_back(byte);
      if (escaped_ || byte == '\\') {
        escaped_ = !escaped_;
      } else if (byte == '"') {
        EndKey();
      }
      return Result::kRunning;
    case Phase::kColon:
      if (byte == ':') phase_ = Phase::kValue;
      return byte == ':' || IsBlank(byte) ? Result::kRunning : Broken(out);
    case Phase::kValue:
      if (IsBlank(byte)) return Result::kRunning;
      phase_ = Phase::kInValue;
      text_.clear();
      streams_ = key_ == Key::kArguments && (byte == '{' || byte == '[');
      return InValue(byte, out);
    case Phase::kInValue:
      return InValue(byte, out);
  }
  return Broken(out);
}

void JsonCallScanner::EndKey() {
  phase_ = Phase::kColon;
  if (text_ == "\"name\"") {
    key_ = begun_ ? Key::kOther : Key::kName;
  } else if (text_ == "\"arguments\"" || text_ == "\"parameters\"") {
    key_ = has_arguments_ ? Key::kOther : Key::kArguments;
  } else {
    key_ = Key::kOther;
  }
}

JsonCallScanner::Result JsonCallScanner::InValue(char byte, std::vector<OutputPart>* out) {
  bool ends = false;
  if (in_string_) {
    if (escaped_ || byte == '\\') {
      escaped_ = !escaped_;
    } else if (byte == '"') {
      in_string_ = false;
      ends = nesting_ == 0;
    }
  } else if (byte == '"') {
    in_string_ = true;
  } else if (byte == '{' || byte == '[') {
    ++nesting_;
  } else if (nesting_ > 0 && (byte == '}' || byte == ']')) {
    ends = --nesting_ == 0;
  } else if (nesting_ == 0 && (byte == ',' || byte == '}' || IsBlank(byte))) {
    // A number or a word ends before what follows it.
    if (!EndValue(out)) return Broken(out);
    return Step(byte, out);
  }
  Take(byte, out);
  if (ends && !EndValue(out)) return Broken(out);
  return Result::kRunning;
}

void JsonCallScanner::Take(char byte, std::vector<OutputPart>* out) {
  if (!streams_) {
    if (key_ != Key::kOther) text_.push_back(byte);
  } else if (in_string_ && static_cast<unsigned char>(byte) < 0x20) {
    // Models write line breaks into strings, which JSON does not know.
    EmitArguments(Format("\\u{:04x}", static_cast<int>(byte)), out);
  } else {
    EmitArguments({&byte, 1}, out);
  }
}

void JsonCallScanner::EmitArguments(std::string_view text, std::vector<OutputPart>* out) {
  has_arguments_ = true;
  if (begun_) {
    AppendPart(OutputPart::Kind::kCallArguments, text, out);
  } else {
    early_ += text;
  }
}

bool JsonCallScanner::EndValue(std::vector<OutputPart>* out) {
  phase_ = Phase::kKey;
  if (key_ == Key::kName) return TakeName(out);
  if (key_ != Key::kArguments || streams_) return true;
  // Some models write the arguments as a text that holds JSON.
  const auto value = Json::Parse(text_);
  if (value.ok() && value->is_string()) {
    const auto inner = Json::Parse(value->string());
    EmitArguments(inner.ok() && inner->is_object() ? value->string() : text_, out);
  } else if (value.ok() && !value->is_null()) {
    EmitArguments(text_, out);
  }
  return true;
}

bool JsonCallScanner::TakeName(std::vector<OutputPart>* out) {
  const auto name = Json::Parse(text_);
  if (!name.ok() || !name->is_string() || name->string().empty()) return false;
  if (names_ != nullptr &&
      std::find(names_->begin(), names_->end(), name->string()) == names_->end()) {
    return false;
  }
  begun_ = true;
  raw_.clear();
  AppendPart(OutputPart::Kind::kCallName, name->string(), out);
  AppendPart(OutputPart::Kind::kCallArguments, early_, out);
  return true;
}

JsonCallScanner::Result JsonCallScanner::End(std::vector<OutputPart>* out) {
  if (!begun_) return Result::kFailed;
  if (!has_arguments_) AppendPart(OutputPart::Kind::kCallArguments, "{}", out);
  AppendPart(OutputPart::Kind::kCallEnd, {}, out);
  return Result::kDone;
}

JsonCallScanner::Result JsonCallScanner::Broken(std::vector<OutputPart>* out) {
  return begun_ ? End(out) : Result::kFailed;
}

}  // namespace deepinfer
