// One JSON Schema as a document: which subschema a $ref names, which dialect is spoken, and where
// a subschema stands (for errors). Owns the JSON and whatever schemas are made from it (constant
// arrays and objects as schemas). Used by one thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

class SchemaDocument {
 public:
  enum class Dialect { kDraft4, kDraft6, kDraft7, kDraft2019, kDraft2020, kUnstated };

  explicit SchemaDocument(Json root);

  const Json& root() const { return root_; }
  Dialect dialect() const { return dialect_; }
  bool before_2019() const { return dialect_ <= Dialect::kDraft7; }

  // The schema that `ref`, found in `from`, names. Remote ones are an error.
  Result<const Json*> Resolve(const Json& from, const std::string& ref);
  // Like "#/properties/a/items"; of a made schema that of its source.
  std::string PointerOf(const Json& schema) const;
  // An error about `keyword` of `schema`.
  Status Unsupported(const Json& schema, std::string_view keyword, std::string_view why) const;

  // A schema that accepts exactly `value`, an array or object. Made once per value.
  const Json& SchemaOfConstant(const Json& value);

  static const Json& True();
  static const Json& False();

 private:
  struct Place {
    std::string base;  // of the resource that holds the schema
    const Json* resource = nullptr;
  };
  void Walk(const Json& schema, const Place& place, int depth);
  void WalkMember(const std::string& key, const Json& value, const Place& place, int depth);
  bool FindPath(const Json& at, const Json& wanted, std::string* path) const;
  Result<const Json*> Follow(const Json& root, const Place& place, std::string_view pointer,
                             const std::string& ref);

  Json root_;
  Dialect dialect_ = Dialect::kUnstated;
  std::unordered_map<const Json*, Place> places_;
  std::unordered_map<std::string, const Json*> by_uri_;  // resources and anchors
  std::deque<Json> made_;
  std::unordered_map<const Json*, const Json*> made_of_;  // source to made schema
};

}  // namespace deepinfer
