// All that a tokenizer is made of, as plain data; models/ fills it from tokenizer.json or GGUF
// metadata. TokenizerSpec is untrusted until Tokenizer::Create has checked it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/request.h"

namespace deepinfer {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;  // matched in the normalised text
};

struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,
    kStrip,
    kReplace,
    kPrepend
  };
  Kind kind = Kind::kNfc;
  std::string pattern;             // kReplace: literal text to find
  std::string content;             // kReplace: replacement; kPrepend: prefix
  bool left = true, right = true;  // kStrip
};

struct PreTokenizerStep {
  enum class Kind {
    kSplit,
    kByteLevel,
    kDigits,
    kMetaspace,
    kPunctuation,
    kWhitespace,
    kWhitespaceSplit
  };
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  Kind kind = Kind::kSplit;
  std::string pattern;  // kSplit: a regular expression, or literal text
  bool pattern_is_regex = true;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  bool add_prefix_space = false;             // kByteLevel
  bool use_regex = true;                     // kByteLevel: split with the GPT-2 pattern first
  bool individual_digits = false;            // kDigits
  std::string replacement = "\xE2\x96\x81";  // kMetaspace
  enum class Prepend { kAlways, kFirst, kNever } prepend = Prepend::kAlways;  // kMetaspace
  bool split = true;                                                          // kMetaspace
};

struct DecoderStep {
  enum class Kind { kByteLevel, kByteFallback, kFuse, kReplace, kStrip, kMetaspace, kBpe };
  Kind kind = Kind::kByteLevel;
  std::string pattern, content;              // kReplace; kStrip: content is the character
  int start = 0, stop = 0;                   // kStrip
  std::string replacement = "\xE2\x96\x81";  // kMetaspace
  bool strip_leading = true;                 // kMetaspace: prepend scheme is not never
};

struct TokenizerSpec {
  enum class Model { kBpe, kUnigram };
  Model model = Model::kBpe;
  std::vector<std::string> vocab;                           // index = id; "" for holes
  std::vector<std::pair<std::string, std::string>> merges;  // by rank; empty: merge by score (SPM)
  std::vector<float> scores;                                // kUnigram, SPM-style BPE
  TokenId unk_id = -1;
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool fuse_unk = false;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<DecoderStep> decoders;
  // Ids put around an encoded text when add_special_tokens is asked for (post-processor).
  std::vector<TokenId> prefix_ids, suffix_ids;
  TokenId bos_id = -1, eos_id = -1, pad_id = -1;
};

}  // namespace deepinfer
