// The normalisers of a tokenizer, compiled: text in, text out, and where each byte came from.
// Immutable after Compile, safe on any thread. Time is linear but for sorting runs of marks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

// Normalised text. source[i] is the byte of the input that byte i was made from (ascending);
// source[size] is the input's size. `source` is filled only when asked for.
struct NormalizedText {
  std::string text;
  std::vector<size_t> source;
};

class Normalizer {
 public:
  enum class Track { kNothing, kSource };

  static Result<Normalizer> Compile(const std::vector<NormalizerStep>& steps);

  // True when Run changes nothing at all, whatever the text.
  bool empty() const { return steps_.empty(); }
  // Valid UTF-8 in and out. `out` is overwritten, `work` is scratch.
  void Run(std::string_view text, Track track, NormalizedText* out, NormalizedText* work) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace deepinfer
