#include "text/jinja/marked_text.h"

#include <algorithm>

namespace deepinfer::jinja {

bool MarkedText::AllTrusted() const {
  if (bytes_.empty()) return true;
  return trusted_.size() == 1 && trusted_[0].begin == 0 && trusted_[0].end == bytes_.size();
}

void MarkedText::AddTrusted(size_t begin, size_t end) {
  if (begin >= end) return;
  if (!trusted_.empty() && trusted_.back().end == begin) {
    trusted_.back().end = end;
  } else {
    trusted_.push_back({begin, end});
  }
}

void MarkedText::Append(std::string_view bytes, Trust trust) {
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (trust == Trust::kTrusted) AddTrusted(begin, bytes_.size());
}

void MarkedText::Append(const MarkedText& other, size_t begin, size_t end) {
  const size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  auto span = std::lower_bound(other.trusted_.begin(), other.trusted_.end(), begin,
                               [](const TrustedSpan& s, size_t at) { return s.end <= at; });
  for (; span != other.trusted_.end() && span->begin < end; ++span) {
    AddTrusted(base + std::max(span->begin, begin) - begin,
               base + std::min(span->end, end) - begin);
  }
}

MarkedText MarkedText::Slice(size_t begin, size_t end) const {
  MarkedText slice;
  slice.Append(*this, begin, end);
  return slice;
}

}  // namespace deepinfer::jinja
