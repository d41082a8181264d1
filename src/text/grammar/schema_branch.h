// One way to satisfy some schemas: constraints that all hold at once, with every choice between
// subschemas made. Plain data of the compiler, pointing into its SchemaDocument.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/grammar/number_rule.h"
#include "text/grammar/syntax_tree.h"

namespace deepinfer {

struct JsonTypes {
  enum : uint8_t {
    kNull = 1,
    kFalse = 2,
    kTrue = 4,
    kNumber = 8,
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAll = 127
  };
};

// A subschema that a value must match, or must not.
struct AppliedSchema {
  const Json* schema = nullptr;
  bool negated = false;
  auto operator<=>(const AppliedSchema&) const = default;
};

struct StringPattern {
  std::string regex;
  bool negated = false;
  bool whole = false;            // a format: the regex matches the whole string
  const Json* schema = nullptr;  // for errors
  const char* keyword = nullptr;
};

struct StringConstraints {
  uint32_t length_min = 0;
  uint32_t length_max = kUnbounded;
  std::vector<StringPattern> patterns;
  std::optional<std::vector<std::string>> allowed;
  std::vector<std::string> excluded;
};

// prefixItems and items of one schema.
struct ArrayGroup {
  std::vector<const Json*> prefix;
  const Json* items = nullptr;  // of what follows; null: anything
  uint32_t scopes = 0;          // the unevaluatedItems that see it
};

// `contains`: between min and max items from `start` on match `what`.
struct ItemCount {
  AppliedSchema what;
  uint32_t start = 0;
  uint32_t min = 1;
  uint32_t max = kUnbounded;
};

// properties, patternProperties and additionalProperties of one schema.
struct ObjectGroup {
  const Json* properties = nullptr;
  const Json* patterns = nullptr;
  const Json* additional = nullptr;
  uint32_t scopes = 0;
};

struct UnevaluatedRule {
  const Json* schema = nullptr;  // what the unevaluated must match
  uint32_t scope = 0;            // one bit
  uint32_t outer = 0;            // the scopes for which it evaluates
};

struct SchemaBranch {
  uint8_t types = JsonTypes::kAll;
  NumberConstraints number;
  StringConstraints string;

  uint32_t items_min = 0;
  uint32_t items_max = kUnbounded;
  std::vector<ArrayGroup> arrays;
  std::vector<std::pair<uint32_t, AppliedSchema>> item_extras;
  std::vector<ItemCount> counts;
  std::vector<UnevaluatedRule> unevaluated_items;
  bool unique_items = false;
  const Json* unique_schema = nullptr;

  uint32_t properties_min = 0;
  uint32_t properties_max = kUnbounded;
  std::vector<ObjectGroup> objects;
  std::set<std::string> required;
  std::vector<std::pair<std::string, AppliedSchema>> property_extras;
  std::vector<AppliedSchema> names;
  std::vector<UnevaluatedRule> unevaluated_properties;
};

}  // namespace deepinfer
