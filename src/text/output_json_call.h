// Reads one tool call that is a JSON object, byte by byte: {"name": ..., "arguments": {...}}.
// Arguments are passed on as they arrive, once the name is known. Owned by an OutputMachine.
#pragma once

#include <string>
#include <vector>

#include "text/output_part.h"

namespace deepinfer {

class JsonCallScanner {
 public:
  enum class Result { kRunning, kDone, kFailed };

  // `names`: the only names that make an object a call; nullptr: any. Must outlive the call.
  void Begin(const std::vector<std::string>* names);
  // kDone: the object ended. kFailed: it is no call and nothing was appended; raw() is its text.
  Result Push(char byte, std::vector<OutputPart>* out);
  bool begun() const { return begun_; }
  const std::string& raw() const { return raw_; }  // until begun

 private:
  enum class Phase { kOpen, kKey, kKeyText, kColon, kValue, kInValue };
  enum class Key { kName, kArguments, kOther };

  Result Step(char byte, std::vector<OutputPart>* out);
  Result InValue(char byte, std::vector<OutputPart>* out);
  void EndKey();
  bool EndValue(std::vector<OutputPart>* out);  // false: no call after all
  bool TakeName(std::vector<OutputPart>* out);
  void Take(char byte, std::vector<OutputPart>* out);
  void EmitArguments(std::string_view text, std::vector<OutputPart>* out);
  Result Broken(std::vector<OutputPart>* out);
  Result End(std::vector<OutputPart>* out);

  const std::vector<std::string>* names_ = nullptr;
  Phase phase_ = Phase::kOpen;
  Key key_ = Key::kOther;
  bool begun_ = false;
  bool has_arguments_ = false;
  bool streams_ = false;  // the value is passed on as it is
  bool in_string_ = false, escaped_ = false;
  int nesting_ = 0;
  std::string raw_;
  std::string text_;   // the key or the value
  std::string early_;  // arguments before the name
};

}  // namespace deepinfer
