// Any text in any profile, whole and cut by the input's own bytes: the parts must be the same.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "text/output_machine.h"

namespace deepinfer {
namespace {

std::vector<OutputPart> Parse(const OutputProfile& profile, uint8_t mode, std::string_view text,
                              size_t step) {
  OutputMachineOptions options;
  options.start = static_cast<OutputMachineOptions::Start>(mode % 4);
  options.calls = static_cast<OutputMachineOptions::Calls>(mode / 4 % 2);
  options.calls_max = mode / 8 % 3;
  options.tool_names = {"f"};
  OutputMachine machine(&profile, std::move(options));
  std::vector<OutputPart> whole;
  for (size_t at = 0; at < text.size(); at += step) {
    std::vector<OutputPart> parts;
    machine.Push(text.substr(at, step), &parts);
    AppendParts(std::move(parts), &whole);
  }
  std::vector<OutputPart> parts;
  machine.Finish(&parts);
  AppendParts(std::move(parts), &whole);
  return whole;
}

}  // namespace
}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  for (const deepinfer::OutputProfile& profile : deepinfer::OutputProfiles()) {
    const auto whole = deepinfer::Parse(profile, data[0], text, text.size() + 1);
    const auto cut = deepinfer::Parse(profile, data[0], text, size_t{1} + data[1] % 16);
    DI_CHECK(whole == cut, "{}", profile.name);
  }
  return 0;
}
