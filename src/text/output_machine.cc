#include "text/output_machine.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace deepinfer {
namespace {

using Kind = OutputPart::Kind;

// The inside of a JSON string that spells `text`; a byte at a time would break characters.
std::string Escaped(std::string_view text) {
  std::string quoted;
  AppendJsonString(&quoted, text);
  return quoted.substr(1, quoted.size() - 2);
}

std::string EscapedByte(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  return value < 0x80 ? Escaped({&byte, 1}) : std::string(1, byte);
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  text.remove_prefix(begin);
  const size_t end = text.find_last_not_of(" \t\r\n");
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

}  // namespace

OutputMachine::OutputMachine(const OutputProfile* profile, OutputMachineOptions options)
    : profile_(profile), options_(std::move(options)) {
  using Start = OutputMachineOptions::Start;
  switch (options_.start) {
    case Start::kContent:
    case Start::kAnswer:
      Enter(State::kContent);
      break;
    case Start::kReasoning:
      Enter(State::kReasoning);
      break;
    case Start::kCalls:
      Enter(State::kCalls);
      break;
  }
}

void OutputMachine::Enter(State state) {
  state_ = state;
  leading_ = true;
  newlines_.clear();
  SetMarkers();
}

// The first marker of the list that fits is taken, so longer ones stand before their beginnings.
void OutputMachine::SetMarkers() {
  using M = OutputMachine;
  using Calls = OutputProfile::Calls;
  const OutputProfile& p = *profile_;
  const bool calls =
      p.calls != Calls::kNone && options_.calls == OutputMachineOptions::Calls::kParsed;
  markers_.clear();
  const auto add = [this](std::string_view text, void (M::*then)()) {
    if (!text.empty()) markers_.push_back({text, then});
  };
  switch (state_) {
    case State::kReasoning:
      add(p.think_end, &M::EndReasoning);
      if (leading_) add(p.think, &M::Drop);
      if (calls) add(p.mark, &M::BeginCalls);
      return;
    case State::kContent:
      add(p.think_end, &M::DropInContent);
      if (fresh_ && options_.start == OutputMachineOptions::Start::kContent) {
        add(p.think, &M::BeginReasoning);
      }
      if (calls) add(p.mark, &M::BeginCalls);
      return;
    case State::kCalls:
      add(p.invoke, &M::BeginName);
      for (const std::string_view end : p.block_ends) add(end, &M::EndBlock);
      return;
    case State::kName:
      add("\"", &M::EndName);
      return;
    case State::kArguments:
      add(p.parameter, &M::BeginKey);
      add(p.invoke, &M::NextName);
      add(p.mark_end, &M::EndParameters);
      if (keys_.empty()) add("{", &M::BeginRawObject);
      return;
    case State::kKey:
      add("\"", &M::EndKey);
      return;
    case State::kType:
      add("true\">", &M::BeginString);
      add("false\">", &M::BeginJson);
      add(">", &M::BeginJson);  // without a type: JSON if it is any
      return;
    case State::kString:
    case State::kJson:
    case State::kSkip:
      add(p.mark_end, &M::EndValue);
      add(p.mark, &M::EndValue);
      return;
    case State::kRawObject:
      add(p.mark_end, &M::EndRawObject);
      return;
    case State::kJsonTail:
      add(p.mark_end, &M::EndMarked);
      add(p.mark, &M::BeginCalls);
      return;
    case State::kJsonCall:
    case State::kFinished:
      return;
  }
}

void OutputMachine::Push(std::string_view text, std::vector<OutputPart>* out) {
  out_ = out;
  for (const char byte : text) Take(byte);
  out_ = nullptr;
}

void OutputMachine::Take(char byte) {
  if (state_ == State::kFinished) return;
  if (state_ == State::kJsonCall) {
    PushJsonCall(byte);
    return;
  }
  held_.push_back(byte);
  Settle();
}

// Releases bytes from the front of held_ until it is empty or the beginning of a marker.
void OutputMachine::Settle() {
  while (!held_.empty()) {
    if (state_ == State::kFinished || state_ == State::kJsonCall) {
      std::string rest = std::exchange(held_, {});
      for (const char byte : rest) Take(byte);
      return;
    }
    const Marker* whole = nullptr;
    bool partial = false;
    for (const Marker& marker : markers_) {
      if (held_.starts_with(marker.text)) {
        whole = &marker;
        break;
      }
      partial = partial || marker.text.starts_with(held_);
    }
    if (whole != nullptr) {
      const auto then = whole->then;
      held_.erase(0, whole->text.size());
      (this->*then)();
      continue;
    }
    if (partial) return;
    const char byte = held_.front();
    held_.erase(0, 1);
    Release(byte);
  }
}

bool OutputMachine::StartsBareJson(char byte) const {
  return fresh_ && (byte == '{' || byte == '[') &&
         profile_->calls == OutputProfile::Calls::kBareJson &&
         options_.calls == OutputMachineOptions::Calls::kParsed;
}

// A byte that belongs to no marker.
void OutputMachine::Release(char byte) {
  switch (state_) {
    case State::kReasoning:
      ReleaseText(Kind::kReasoning, byte);
      return;
    case State::kContent:
      if (StartsBareJson(byte)) {
        BeginJsonCall();
        PushJsonCall(byte);
        return;
      }
      ReleaseText(Kind::kText, byte);
      return;
    case State::kName:
      name_.push_back(byte);
      return;
    case State::kKey:
      key_.push_back(byte);
      return;
    case State::kString:
      Emit(Kind::kCallArguments, EscapedByte(byte));
      return;
    case State::kJson:
      value_.push_back(byte);
      return;
    case State::kRawObject:
      value_.push_back(byte);
      return;
    case State::kJsonTail:
      if (byte == '{') {
        value_.clear();
        BeginJsonCall();
        PushJsonCall(byte);
      } else if (std::string_view(" \t\r\n,;]}").find(byte) == std::string_view::npos) {
        Enter(State::kContent);
        ReleaseText(Kind::kText, byte);
      }
      return;
    case State::kCalls:
    case State::kArguments:
    case State::kType:
    case State::kSkip:
    case State::kJsonCall:
    case State::kFinished:
      return;
  }
}

// Line breaks around markers belong to them.
void OutputMachine::ReleaseText(Kind kind, char byte) {
  if (byte == '\n') {
    if (!leading_) newlines_.push_back(byte);
    return;
  }
  Emit(kind, newlines_);
  Emit(kind, {&byte, 1});
  newlines_.clear();
  const bool still_fresh = fresh_ && (byte == ' ' || byte == '\t');
  if (!leading_ && still_fresh == fresh_) return;
  leading_ = false;
  fresh_ = still_fresh;
  SetMarkers();
}

void OutputMachine::PushJsonCall(char byte) {
  switch (json_.Push(byte, out_)) {
    case JsonCallScanner::Result::kRunning:
      return;
    case JsonCallScanner::Result::kDone:
      CallEnded();
      if (state_ != State::kFinished) Enter(State::kJsonTail);
      return;
    case JsonCallScanner::Result::kFailed: {
      const std::string raw = std::exchange(value_, {}) + json_.raw();
      Enter(State::kContent);
      Emit(Kind::kText, raw);
      leading_ = false;
      SetMarkers();
      return;
    }
  }
}

void OutputMachine::DropInContent() {
  leading_ = false;
  SetMarkers();
}

void OutputMachine::EndReasoning() { Enter(State::kContent); }

void OutputMachine::BeginReasoning() {
  fresh_ = false;
  Enter(State::kReasoning);
}

void OutputMachine::BeginCalls() {
  fresh_ = false;
  if (profile_->calls == OutputProfile::Calls::kTags) {
    Enter(State::kCalls);
    return;
  }
  // What is no call after all is shown with its mark.
  value_ = profile_->mark;
  BeginJsonCall();
}

void OutputMachine::BeginJsonCall() {
  fresh_ = false;
  const bool bare = profile_->calls == OutputProfile::Calls::kBareJson;
  json_.Begin(bare ? &options_.tool_names : nullptr);
  Enter(State::kJsonCall);
}

void OutputMachine::BeginName() {
  name_.clear();
  keys_.clear();
  Enter(State::kName);
}

void OutputMachine::EndName() {
  Emit(Kind::kCallName, name_);
  Enter(State::kArguments);
}

void OutputMachine::BeginKey() {
  key_.clear();
  Enter(State::kKey);
}

// Of a parameter that is named twice the first counts.
void OutputMachine::EndKey() {
  repeated_ = std::find(keys_.begin(), keys_.end(), key_) != keys_.end();
  if (!repeated_) {
    Emit(Kind::kCallArguments, keys_.empty() ? "{\"" : ", \"");
    Emit(Kind::kCallArguments, Escaped(key_));
    Emit(Kind::kCallArguments, "\": ");
    keys_.push_back(key_);
  }
  Enter(State::kType);
}

void OutputMachine::BeginString() {
  if (!repeated_) Emit(Kind::kCallArguments, "\"");
  Enter(repeated_ ? State::kSkip : State::kString);
}

void OutputMachine::BeginJson() {
  value_.clear();
  Enter(repeated_ ? State::kSkip : State::kJson);
}

void OutputMachine::EndValue() {
  if (state_ == State::kString) {
    Emit(Kind::kCallArguments, "\"");
  } else if (state_ == State::kJson) {
    // What claims to be JSON and is not is a text.
    const std::string_view value = Trimmed(value_);
    if (Json::Parse(value).ok()) {
      Emit(Kind::kCallArguments, value);
    } else {
      Emit(Kind::kCallArguments, "\"" + Escaped(value_) + "\"");
    }
    value_.clear();
  }
  Enter(State::kArguments);
}

void OutputMachine::EndParameters() {
  Emit(Kind::kCallArguments, keys_.empty() ? "{}" : "}");
  Emit(Kind::kCallEnd, {});
  CallEnded();
  if (state_ != State::kFinished) Enter(State::kCalls);
}

// The closing tag of the call before was forgotten.
void OutputMachine::NextName() {
  EndParameters();
  if (state_ != State::kFinished) BeginName();
}

void OutputMachine::BeginRawObject() {
  value_ = "{";
  Enter(State::kRawObject);
}

void OutputMachine::EndRawObject() {
  const std::string_view value = Trimmed(value_);
  const Result<Json> object = Json::Parse(value);
  Emit(Kind::kCallArguments, object.ok() ? value : "{}");
  Emit(Kind::kCallEnd, {});
  value_.clear();
  CallEnded();
  if (state_ != State::kFinished) Enter(State::kCalls);
}

void OutputMachine::EndMarked() { Enter(State::kContent); }

void OutputMachine::EndBlock() { Enter(State::kFinished); }

void OutputMachine::CallEnded() {
  ++calls_;
  if (options_.calls_max > 0 && calls_ >= options_.calls_max) Enter(State::kFinished);
}

void OutputMachine::Finish(std::vector<OutputPart>* out) {
  out_ = out;
  if (state_ == State::kReasoning || state_ == State::kContent) {
    const Kind kind = state_ == State::kReasoning ? Kind::kReasoning : Kind::kText;
    Emit(kind, std::exchange(newlines_, {}));
    Emit(kind, std::exchange(held_, {}));
  } else if (state_ == State::kString) {
    Emit(Kind::kCallArguments, Escaped(std::exchange(held_, {})));
  } else if (state_ == State::kJson || state_ == State::kRawObject) {
    Emit(Kind::kCallArguments, value_ + std::exchange(held_, {}));
  } else if (state_ == State::kJsonCall && !json_.begun()) {
    Emit(Kind::kText, value_ + json_.raw());
  }
  state_ = State::kFinished;
  out_ = nullptr;
}

}  // namespace deepinfer
