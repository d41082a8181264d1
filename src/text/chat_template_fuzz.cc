#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "text/chat_template.h"

// The input is a template, or a template, a zero byte and the JSON of its variables. Whatever it
// does ends under small limits, and the trusted spans of the result are well formed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deepinfer::ChatTemplate;
  using deepinfer::Json;
  std::string_view source(reinterpret_cast<const char*>(data), size);
  std::string_view text =
      R"({"messages":[{"role":"system","content":" Be brief. "},{"role":"user","content":"<x> é"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":)"
      R"({"a":[1,2.5,true,null]}}}]}],"tools":null,"bos_token":"<s>","eos_token":"</s>",)"
      R"("add_generation_prompt":true,"n":7,"s":"a,b ,c","l":[3,1,2],"d":{"k":1,"j":[{}]}})";
  const size_t zero = source.find('\0');
  if (zero != std::string_view::npos) {
    text = source.substr(zero + 1);
    source = source.substr(0, zero);
  }
  deepinfer::ChatTemplateLimits limits;
  limits.output_bytes_max = size_t{1} << 20;
  limits.steps_max = 100'000;
  const auto compiled = ChatTemplate::Compile(source, limits);
  if (!compiled.ok()) return 0;
  const deepinfer::Result<Json> variables = Json::Parse(text);
  if (!variables.ok() || !variables->is_object()) return 0;
  const auto prompt = (*compiled)->Render(*variables);
  if (!prompt.ok()) {
    DI_CHECK(!prompt.status().message().empty() || source.find("raise") != source.npos);
    return 0;
  }
  size_t at = 0;
  for (const deepinfer::TrustedSpan& span : prompt->trusted) {
    DI_CHECK(span.begin < span.end && span.begin >= at && span.end <= prompt->text.size());
    at = span.end + 1;
  }
  return 0;
}
