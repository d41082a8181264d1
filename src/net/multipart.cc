#include "net/multipart.h"

#include <algorithm>
#include <optional>

#include "base/format.h"
#include "net/http_types.h"

namespace deepinfer {
namespace {

constexpr size_t kBoundaryMax = 70;  // RFC 2046
constexpr std::string_view kBlanks = " \t";

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// One "; name=value" at the front of `rest`; the value may be quoted.
struct Parameter {
  std::string_view name;
  std::string value;
};

// `rest` begins behind the '"'; it ends up behind the closing one.
std::optional<std::string> ReadQuoted(std::string_view* rest) {
  std::string value;
  for (size_t i = 0; i < rest->size(); ++i) {
    const char c = (*rest)[i];
    if (c == '"') {
      rest->remove_prefix(i + 1);
      return value;
    }
    // Browsers escape quotes as %22 and leave backslashes alone; others write \" and \\.
    const bool escape =
        c == '\\' && i + 1 < rest->size() && ((*rest)[i + 1] == '"' || (*rest)[i + 1] == '\\');
    if (escape) ++i;
    value.push_back((*rest)[i]);
  }
  return std::nullopt;
}

std::optional<Parameter> NextParameter(std::string_view* rest) {
  *rest = Trim(*rest);
  if (rest->empty() || rest->front() != ';') return std::nullopt;
  rest->remove_prefix(1);
  const size_t equals = rest->find('=');
  if (equals == rest->npos) return std::nullopt;
  Parameter out;
  out.name = Trim(rest->substr(0, equals));
  rest->remove_prefix(equals + 1);
  *rest = Trim(*rest);
  if (!rest->empty() && rest->front() == '"') {
    rest->remove_prefix(1);
    std::optional<std::string> value = ReadQuoted(rest);
    if (!value.has_value()) return std::nullopt;
    out.value = *std::move(value);
    return out;
  }
  const size_t end = std::min(rest->find(';'), rest->size());
  out.value = Trim(rest->substr(0, end));
  rest->remove_prefix(end);
  return out;
}

Result<std::string> Boundary(std::string_view content_type) {
  const size_t semicolon = std::min(content_type.find(';'), content_type.size());
  if (!EqualsIgnoreCase(Trim(content_type.substr(0, semicolon)), "multipart/form-data")) {
    return Invalid("the body must be sent as \"Content-Type: multipart/form-data\"");
  }
  std::string_view rest = content_type.substr(semicolon);
  while (const std::optional<Parameter> parameter = NextParameter(&rest)) {
    if (!EqualsIgnoreCase(parameter->name, "boundary")) continue;
    if (parameter->value.empty() || parameter->value.size() > kBoundaryMax) break;
    return parameter->value;
  }
  return Invalid(Format("multipart/form-data needs a boundary of 1 to {} bytes", kBoundaryMax));
}

// The lines between a boundary and the blank line.
Status ReadHeader(std::string_view header, MultipartPart* part) {
  bool found = false;
  while (!header.empty()) {
    const size_t end = std::min(header.find("\r\n"), header.size());
    const std::string_view line = header.substr(0, end);
    header.remove_prefix(std::min(end + 2, header.size()));
    const size_t colon = line.find(':');
    if (colon == line.npos) return Invalid("a part of the form has a malformed header line");
    if (!EqualsIgnoreCase(Trim(line.substr(0, colon)), "content-disposition")) continue;
    std::string_view rest = Trim(line.substr(colon + 1));
    const size_t semicolon = std::min(rest.find(';'), rest.size());
    if (found || !EqualsIgnoreCase(Trim(rest.substr(0, semicolon)), "form-data")) {
      return Invalid("a part of the form needs one \"Content-Disposition: form-data\"");
    }
    found = true;
    rest.remove_prefix(semicolon);
    while (std::optional<Parameter> parameter = NextParameter(&rest)) {
      if (EqualsIgnoreCase(parameter->name, "name")) part->name = std::move(parameter->value);
      if (EqualsIgnoreCase(parameter->name, "filename")) {
        part->filename = std::move(parameter->value);
      }
    }
  }
  if (part->name.empty()) return Invalid("a part of the form has no name");
  return {};
}

}  // namespace

Result<std::vector<MultipartPart>> ParseMultipart(std::string_view content_type,
                                                  std::string_view body) {
  DI_ASSIGN(const std::string boundary, Boundary(content_type));
  const std::string first = "--" + boundary;
  const std::string between = "\r\n" + first;
  // Text before the first boundary has no meaning.
  size_t at = body.starts_with(first) ? first.size() : body.find(between);
  if (at == body.npos) return Invalid("the form's boundary does not occur in the body");
  if (!body.starts_with(first)) at += between.size();
  std::vector<MultipartPart> parts;
  while (true) {
    std::string_view rest = body.substr(at);
    if (rest.starts_with("--")) return parts;
    const size_t line = rest.find_first_not_of(kBlanks);
    if (line == rest.npos || !rest.substr(line).starts_with("\r\n")) {
      return Invalid("a boundary of the form is not followed by a line's end");
    }
    if (parts.size() == kMultipartPartsMax) {
      return Invalid(Format("the form has more than {} parts", kMultipartPartsMax));
    }
    rest.remove_prefix(line + 2);
    const std::string_view head = rest.substr(0, kMultipartHeaderBytesMax);
    const size_t blank = head.starts_with("\r\n") ? 0 : head.find("\r\n\r\n");
    if (blank == head.npos) {
      return Invalid(Format("the header of a part of the form has no end within {} bytes",
                            kMultipartHeaderBytesMax));
    }
    MultipartPart& part = parts.emplace_back();
    DI_TRY(ReadHeader(rest.substr(0, blank), &part));
    rest.remove_prefix(blank + 4);
    const size_t end = rest.find(between);
    if (end == rest.npos) return Invalid("the form ends before its last boundary");
    part.body = rest.substr(0, end);
    at = body.size() - rest.size() + end + between.size();
  }
}

}  // namespace deepinfer
