// A regular expression of a tokenizer file, run by PCRE2 under a step budget: for patterns that
// have no scanner of ours. Immutable after Compile; Find is safe on any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/pattern_scanner.h"

namespace deepinfer {

class SplitRegex {
 public:
  // Understands what Oniguruma and PCRE2 spell alike; refuses class intersections (&&).
  static Result<std::unique_ptr<SplitRegex>> Compile(std::string_view pattern);
  ~SplitRegex();

  // All matches in valid UTF-8 `text`, in order, disjoint; one may be empty. Total work is linear
  // in the text: when the budget is used up the rest counts as not matched.
  void FindAll(std::string_view text, std::vector<PatternMatch>* matches) const;

 private:
  struct Impl;
  explicit SplitRegex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
