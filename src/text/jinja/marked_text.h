// UTF-8 text that knows which of its bytes the template wrote itself (trusted) and which came from
// messages, tools or documents. Every string operation of the interpreter keeps these marks.
// A plain value; invariant: `trusted` is sorted, disjoint, not adjacent, inside the bytes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer::jinja {

enum class Trust { kTrusted, kUntrusted };

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string bytes, Trust trust) : bytes_(std::move(bytes)) {
    if (trust == Trust::kTrusted && !bytes_.empty()) trusted_.push_back({0, bytes_.size()});
  }

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<TrustedSpan>& trusted() const { return trusted_; }
  // True when no byte is untrusted.
  bool AllTrusted() const;
  // Memory held, for budgets.
  size_t Footprint() const { return bytes_.size() + trusted_.size() * sizeof(TrustedSpan); }

  void Append(std::string_view bytes, Trust trust);
  void Append(const MarkedText& other) { Append(other, 0, other.size()); }
  // Bytes [begin, end) of `other` with their marks.
  void Append(const MarkedText& other, size_t begin, size_t end);
  MarkedText Slice(size_t begin, size_t end) const;

  std::string TakeBytes() && { return std::move(bytes_); }
  std::vector<TrustedSpan> TakeTrusted() && { return std::move(trusted_); }

 private:
  void AddTrusted(size_t begin, size_t end);

  std::string bytes_;
  std::vector<TrustedSpan> trusted_;
};

}  // namespace deepinfer::jinja
