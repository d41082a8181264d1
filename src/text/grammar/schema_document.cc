#include "text/grammar/schema_document.h"

#include <algorithm>
#include <array>

#include "base/format.h"

namespace deepinfer {

namespace {

constexpr int kDepthMax = 256;

// Keywords whose value is a schema, a list of schemas, or an object of schemas.
constexpr std::array<std::string_view, 12> kSchemaKeywords = {"additionalProperties",
                                                              "unevaluatedProperties",
                                                              "propertyNames",
                                                              "items",
                                                              "additionalItems",
                                                              "unevaluatedItems",
                                                              "contains",
                                                              "not",
                                                              "if",
                                                              "then",
                                                              "else",
                                                              "contentSchema"};
constexpr std::array<std::string_view, 5> kListKeywords = {"allOf", "anyOf", "oneOf", "prefixItems",
                                                           "items"};
constexpr std::array<std::string_view, 6> kMapKeywords = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"};

template <size_t N>
bool Among(const std::array<std::string_view, N>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

SchemaDocument::Dialect DialectOf(const Json& root) {
  using D = SchemaDocument::Dialect;
  const Json* uri = root.Find("$schema");
  if (uri == nullptr || !uri->is_string()) return D::kUnstated;
  const std::pair<std::string_view, D> known[] = {
      {"draft-03", D::kDraft4}, {"draft-04", D::kDraft4},   {"draft-06", D::kDraft6},
      {"draft-07", D::kDraft7}, {"2019-09", D::kDraft2019}, {"2020-12", D::kDraft2020}};
  for (const auto& [part, dialect] : known) {
    if (uri->string().find(part) != std::string::npos) return dialect;
  }
  return D::kUnstated;
}

std::string WithoutFragment(const std::string& uri) { return uri.substr(0, uri.find('#')); }

bool HasScheme(std::string_view uri) {
  const size_t colon = uri.find(':');
  return colon != std::string_view::npos && colon > 0 &&
         uri.substr(0, colon).find_first_of("/?#") == std::string_view::npos;
}

// `path` without "." and ".." segments.
std::string CleanPath(std::string_view path) {
  std::vector<std::string_view> kept;
  size_t begin = 1;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    const bool last = end == path.size();
    if (part == "..") {
      if (!kept.empty()) kept.pop_back();
    } else if (part != ".") {
      kept.push_back(part);
    }
    if (last && (part == "." || part == "..")) kept.push_back("");
    begin = end + 1;
  }
  std::string out;
  for (const std::string_view part : kept) out.append("/").append(part);
  return out;
}

// RFC 3986 5.2, for what schemas use. `ref` has no fragment.
std::string ResolveUri(const std::string& base, const std::string& ref) {
  if (ref.empty()) return base;
  if (HasScheme(ref)) return ref;
  size_t authority_end = 0;
  std::string prefix;
  if (HasScheme(base)) {
    const size_t colon = base.find(':');
    authority_end = colon + 1;
    if (base.compare(colon + 1, 2, "//") == 0) {
      authority_end = std::min(base.find('/', colon + 3), base.size());
    }
    if (ref.starts_with("//")) return base.substr(0, colon + 1) + ref;
    prefix = base.substr(0, authority_end);
  }
  if (ref[0] == '/') return prefix + CleanPath(ref);
  std::string path = base.substr(authority_end);
  path = path.substr(0, path.find('?'));
  const size_t slash = path.rfind('/');
  path = slash == std::string::npos ? "/" : path.substr(0, slash + 1);
  return prefix + CleanPath(path + ref);
}

std::string Unescape(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out += token[++i] == '0' ? '~' : '/';
    } else {
      out += token[i];
    }
  }
  return out;
}

std::string PercentDecode(std::string_view text) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string Escape(std::string_view token) {
  std::string out;
  for (const char c : token) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

SchemaDocument::SchemaDocument(Json root) : root_(std::move(root)), dialect_(DialectOf(root_)) {
  by_uri_[""] = &root_;
  Walk(root_, {"", &root_}, 0);
}

const Json& SchemaDocument::True() {
  static const Json value = Json::Bool(true);
  return value;
}

const Json& SchemaDocument::False() {
  static const Json value = Json::Bool(false);
  return value;
}

void SchemaDocument::Walk(const Json& schema, const Place& outer, int depth) {
  if (depth > kDepthMax || !schema.is_object()) return;
  Place place = outer;
  // In old dialects a $ref makes its siblings mean nothing, its $id included.
  const bool only_ref = before_2019() && schema.Find("$ref") != nullptr;
  const Json* id = schema.Find(dialect_ == Dialect::kDraft4 ? "id" : "$id");
  if (id != nullptr && id->is_string() && !only_ref) {
    const std::string& text = id->string();
    if (text.starts_with('#')) {
      by_uri_.emplace(place.base + text, &schema);  // an anchor, before 2019
    } else {
      place.base = ResolveUri(place.base, WithoutFragment(text));
      place.resource = &schema;
      by_uri_.emplace(place.base, &schema);
    }
  }
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const Json* anchor = schema.Find(keyword);
    if (anchor != nullptr && anchor->is_string()) {
      by_uri_.emplace(place.base + "#" + anchor->string(), &schema);
    }
  }
  places_[&schema] = place;
  for (const auto& [key, value] : schema.members()) WalkMember(key, value, place, depth + 1);
}

void SchemaDocument::WalkMember(const std::string& key, const Json& value, const Place& place,
                                int depth) {
  if (value.is_object() && Among(kMapKeywords, key)) {
    for (const auto& member : value.members()) Walk(member.second, place, depth + 1);
  } else if (value.is_object() && Among(kSchemaKeywords, key)) {
    Walk(value, place, depth);
  } else if (value.is_array() && Among(kListKeywords, key)) {
    for (const Json& item : value.items()) Walk(item, place, depth + 1);
  }
}

Result<const Json*> SchemaDocument::Resolve(const Json& from, const std::string& ref) {
  const auto at = places_.find(&from);
  const Place place = at != places_.end() ? at->second : Place{"", &root_};
  const size_t hash = ref.find('#');
  const std::string uri = ResolveUri(place.base, ref.substr(0, hash));
  const std::string fragment =
      hash == std::string::npos ? "" : PercentDecode(std::string_view(ref).substr(hash + 1));
  const Json* resource = nullptr;
  if (uri == place.base) {
    resource = place.resource;
  } else if (const auto found = by_uri_.find(uri); found != by_uri_.end()) {
    resource = found->second;
  }
  if (resource == nullptr) {
    return Unsupported(
        from, "$ref",
        Format("\"{}\" is not part of this document, and others are not fetched", ref));
  }
  if (fragment.empty()) return resource;
  const Place target = places_.contains(resource) ? places_.at(resource) : place;
  if (fragment[0] == '/') return Follow(*resource, target, fragment, ref);
  const auto anchor = by_uri_.find(target.base + "#" + fragment);
  if (anchor == by_uri_.end()) {
    return Unsupported(from, "$ref", Format("there is no anchor \"{}\"", fragment));
  }
  return anchor->second;
}

Result<const Json*> SchemaDocument::Follow(const Json& root, const Place& place,
                                           std::string_view pointer, const std::string& ref) {
  const Json* at = &root;
  Place here = place;
  for (size_t begin = 1; begin <= pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    const std::string token = Unescape(pointer.substr(begin, end - begin));
    const Json* next = nullptr;
    if (at->is_object()) {
      next = at->Find(token);
    } else if (at->is_array() && !token.empty() && token.size() < 9 &&
               token.find_first_not_of("0123456789") == std::string::npos) {
      const auto index = static_cast<size_t>(std::stoul(token));
      if (index < at->items().size()) next = &at->items()[index];
    }
    if (next == nullptr) {
      return Invalid(Format("JSON Schema: $ref \"{}\" names nothing in this document", ref))
          .WithParam(ref);
    }
    at = next;
    if (const auto known = places_.find(at); known != places_.end()) here = known->second;
    begin = end + 1;
  }
  if (!at->is_object() && !at->is_bool()) {
    return Invalid(Format("JSON Schema: $ref \"{}\" names something that is no schema", ref))
        .WithParam(ref);
  }
  // Below an unknown keyword nothing was walked so far.
  if (!places_.contains(at)) Walk(*at, here, 0);
  return at;
}

bool SchemaDocument::FindPath(const Json& at, const Json& wanted, std::string* path) const {
  if (&at == &wanted) return true;
  const size_t length = path->size();
  for (const auto& [key, value] : at.members()) {
    *path += "/" + Escape(key);
    if (FindPath(value, wanted, path)) return true;
    path->resize(length);
  }
  for (size_t i = 0; i < at.items().size(); ++i) {
    *path += Format("/{}", i);
    if (FindPath(at.items()[i], wanted, path)) return true;
    path->resize(length);
  }
  return false;
}

std::string SchemaDocument::PointerOf(const Json& schema) const {
  std::string path = "#";
  if (FindPath(root_, schema, &path)) return path;
  for (const auto& [source, made] : made_of_) {
    std::string inner = "#";
    if (FindPath(*made, schema, &inner)) return PointerOf(*source);
  }
  return "#";
}

Status SchemaDocument::Unsupported(const Json& schema, std::string_view keyword,
                                   std::string_view why) const {
  const std::string pointer = PointerOf(schema) + "/" + Escape(keyword);
  return Invalid(Format("JSON Schema: \"{}\" at {} cannot be enforced: {}", keyword, pointer, why))
      .WithParam(pointer);
}

const Json& SchemaDocument::SchemaOfConstant(const Json& value) {
  const auto [entry, is_new] = made_of_.try_emplace(&value, nullptr);
  if (!is_new) return *entry->second;
  Json schema = Json::Object();
  const auto constant = [](const Json& part) {
    Json out = Json::Object();
    out.Set("const", part);
    return out;
  };
  if (value.is_array()) {
    schema.Set("type", Json::String("array"));
    Json& prefix = schema.Set("prefixItems", Json::Array());
    for (const Json& item : value.items()) prefix.Push(constant(item));
    schema.Set("items", Json::Bool(false));
    schema.Set("minItems", Json::Int(static_cast<int64_t>(value.items().size())));
  } else {
    schema.Set("type", Json::String("object"));
    Json& properties = schema.Set("properties", Json::Object());
    Json required = Json::Array();
    for (const auto& [key, part] : value.members()) {
      properties.Set(key, constant(part));
      required.Push(Json::String(key));
    }
    schema.Set("required", std::move(required));
    schema.Set("additionalProperties", Json::Bool(false));
  }
  made_.push_back(std::move(schema));
  made_of_[&value] = &made_.back();
  return made_.back();
}

}  // namespace deepinfer
