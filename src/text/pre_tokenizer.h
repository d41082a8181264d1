// Cuts normalised text into the pieces that the model merges: the pre-tokeniser steps, compiled.
// Immutable after Compile; safe on any thread with a work space of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "text/pattern_scanner.h"
#include "text/split_regex.h"
#include "text/tokenizer_spec.h"

namespace deepinfer {

// Streams the pieces of one text for the pipelines that have a scanner of their own.
class FastSplitter {
 public:
  enum class Plan {
    kNone,
    kSingle,    // one covering pattern
    kDigits,    // each digit alone, then a covering pattern (SmolLM)
    kDeepSeek,  // its three stages
  };
  FastSplitter(Plan plan, PatternKind pattern, std::string_view text)
      : plan_(plan), pattern_(pattern), text_(text) {}
  bool Next(std::string_view* piece);

 private:
  bool NextDigits(std::string_view* piece);
  bool NextDeepSeek(std::string_view* piece);
  std::string_view Take(size_t end);

  Plan plan_;
  PatternKind pattern_;
  std::string_view text_;
  size_t at_ = 0;
  size_t region_end_ = 0;  // the current stretch without digits (and CJK)
  size_t match_end_ = 0;   // > at_: a match that stands after a gap just given
};

class PreTokenizer {
 public:
  // Buffers of one thread.
  struct Scratch {
    std::string text, other_text;
    std::vector<PatternMatch> pieces, other_pieces, matches;
    size_t bytes() const;
  };

  static Result<std::unique_ptr<PreTokenizer>> Compile(const std::vector<PreTokenizerStep>& steps);

  // The last step is ByteLevel, and it is left to the model: pieces are raw bytes.
  bool byte_level() const { return byte_level_; }

  // Calls sink(piece) for each piece of valid UTF-8 `text`, in order. `at_start`: the text stands
  // at the very start of the input (Metaspace "first").
  enum class Place { kStart, kInside };
  template <typename Sink>
  void Run(std::string_view text, Place place, Scratch* scratch, Sink&& sink) const {
    std::string_view piece;
    if (plan_ != FastSplitter::Plan::kNone) {
      FastSplitter splitter(plan_, pattern_, text);
      while (splitter.Next(&piece)) sink(piece);
      return;
    }
    RunSteps(text, place, scratch);
    for (const PatternMatch& range : scratch->pieces) {
      sink(std::string_view(scratch->text).substr(range.begin, range.end - range.begin));
    }
  }

 private:
  struct Step {
    PreTokenizerStep spec;
    std::optional<PatternKind> scanner;
    std::unique_ptr<SplitRegex> regex;
  };

  static Result<Step> CompileStep(const PreTokenizerStep& spec);
  void ChoosePlan();
  void RunSteps(std::string_view text, Place place, Scratch* scratch) const;
  void Apply(const Step& step, Place place, bool last, Scratch* scratch) const;
  void ApplySplit(const Step& step, Scratch* scratch) const;
  void ApplyMetaspace(const Step& step, Place place, Scratch* scratch) const;
  void ApplyByteLevel(const Step& step, bool last, Scratch* scratch) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
  FastSplitter::Plan plan_ = FastSplitter::Plan::kNone;
  PatternKind pattern_ = PatternKind::kGpt2;
};

}  // namespace deepinfer
