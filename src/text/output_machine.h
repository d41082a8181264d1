// Generated text to reasoning, content and tool calls, byte by byte. What model families differ in
// is an OutputProfile (a table); one driver reads them all. However the text is cut into pieces,
// the parts add up to the same. A machine belongs to one sample of one response; profiles are
// constant and must outlive it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_json_call.h"
#include "text/output_part.h"

namespace deepinfer {

struct OutputProfile {
  std::string_view name;  // a PromptProfile's, or the dialect's
  std::string_view think, think_end;

  // kTags: named parameters between tags. kMarkedJson: an object after `mark`. kBareJson: an object
  // that begins the answer, with or without `mark`.
  enum class Calls { kTags, kMarkedJson, kBareJson, kNone } calls = Calls::kNone;
  std::string_view mark;      // begins what belongs to calls
  std::string_view mark_end;  // kTags: begins every closing tag; kMarkedJson: ends a call
  // Of kTags, without `mark`: what stands before a name, and what ends all calls.
  std::string_view invoke, parameter;
  std::span<const std::string_view> block_ends;
};

std::span<const OutputProfile> OutputProfiles();
// nullptr when there is none of this name.
const OutputProfile* FindOutputProfile(std::string_view name);

struct OutputMachineOptions {
  // Where the prompt ended. kContent may begin with reasoning, kAnswer not: it was closed.
  enum class Start { kContent, kAnswer, kReasoning, kCalls } start = Start::kContent;
  enum class Calls { kText, kParsed } calls = Calls::kText;
  int calls_max = 0;  // text after so many calls is dropped; 0: no limit
  std::vector<std::string>
      tool_names;  // kBareJson takes an object for a call only with one of them
};

class OutputMachine {
 public:
  OutputMachine(const OutputProfile* profile, OutputMachineOptions options);
  OutputMachine(const OutputMachine&) = delete;
  OutputMachine& operator=(const OutputMachine&) = delete;

  // Appends to `out` what `text` makes certain; at most the length of a marker is held back.
  void Push(std::string_view text, std::vector<OutputPart>* out);
  // The sample is over: appends what was held back. A call that was cut stays without kCallEnd.
  void Finish(std::vector<OutputPart>* out);

  bool reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State {
    kReasoning,
    kContent,
    kCalls,      // between calls
    kName,       // of a call
    kArguments,  // between parameters
    kKey,        // of a parameter
    kType,       // after the key
    kString,     // a value that is text
    kJson,       // a value in JSON
    kSkip,       // a value that does not count
    kRawObject,  // arguments as one JSON object between tags
    kJsonCall,   // inside an object that is a call
    kJsonTail,   // after such an object
    kFinished,
  };
  struct Marker {
    std::string_view text;
    void (OutputMachine::*then)();
  };

  void Enter(State state);
  void SetMarkers();
  void Settle();
  void Release(char byte);
  void ReleaseText(OutputPart::Kind kind, char byte);
  void Take(char byte);
  bool StartsBareJson(char byte) const;
  void PushJsonCall(char byte);
  void Emit(OutputPart::Kind kind, std::string_view text) { AppendPart(kind, text, out_); }

  // What markers lead to.
  void EndReasoning();
  void BeginReasoning();
  void Drop() {}
  void DropInContent();
  void BeginCalls();
  void BeginJsonCall();
  void BeginName();
  void EndName();
  void BeginKey();
  void EndKey();
  void BeginString();
  void BeginJson();
  void EndValue();
  void EndParameters();
  void NextName();
  void BeginRawObject();
  void EndRawObject();
  void EndMarked();
  void EndBlock();
  void CallEnded();

  const OutputProfile* profile_;
  const OutputMachineOptions options_;
  State state_ = State::kContent;
  std::vector<Marker> markers_;  // of state_
  std::string held_;             // begins like a marker
  std::string newlines_;         // stand before a marker or belong to the text
  bool leading_ = true;          // nothing of this text was released yet
  bool fresh_ = true;            // nothing at all was
  int calls_ = 0;                // complete ones

  std::string name_, key_, value_;
  std::vector<std::string> keys_;  // of the call
  bool repeated_ = false;          // the parameter was named before
  JsonCallScanner json_;
  std::vector<OutputPart>* out_ = nullptr;  // of the call of Push or Finish
};

}  // namespace deepinfer
