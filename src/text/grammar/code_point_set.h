// Sets of Unicode code points as sorted, disjoint, non-adjacent ranges. Values, any thread.
#pragma once

#include <string_view>
#include <vector>

namespace deepinfer {

inline constexpr char32_t kCodePointMax = 0x10FFFF;

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
  bool operator==(const CodePointRange&) const = default;
};

class CodePointSet {
 public:
  CodePointSet() = default;
  explicit CodePointSet(std::vector<CodePointRange> ranges);  // any order, may overlap
  static CodePointSet Single(char32_t cp) { return CodePointSet({{cp, cp}}); }
  static CodePointSet All() { return CodePointSet({{0, kCodePointMax}}); }

  bool empty() const { return ranges_.empty(); }
  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  bool Contains(char32_t cp) const;
  CodePointSet Complement() const;
  CodePointSet Union(const CodePointSet& other) const;

  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<CodePointRange> ranges_;
};

// The classes of ECMA-262: d, w, s. Empty for another letter.
CodePointSet EcmaClass(char letter);
// \p{name}: general categories (L, Lu, N, ...) and their long names. Empty when unknown.
CodePointSet UnicodeCategory(std::string_view name);

}  // namespace deepinfer
