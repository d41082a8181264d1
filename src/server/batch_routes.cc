#include "server/batch_routes.h"

#include <algorithm>

#include "api/call_options.h"
#include "base/format.h"
#include "net/multipart.h"
#include "server/error_response.h"

namespace deepinfer {
namespace {

constexpr std::string_view kFiles = "/v1/files";
constexpr std::string_view kBatches = "/v1/batches";
constexpr size_t kFilenameMax = 255;
constexpr std::string_view kPurposes[] = {"batch", "user_data"};

// "/v1/files/ID/ACTION"
struct Target {
  std::string_view id, action;
};

Target TargetOf(std::string_view path, std::string_view prefix) {
  const std::string_view rest = path.substr(std::min(prefix.size() + 1, path.size()));
  const size_t slash = std::min(rest.find('/'), rest.size());
  return {rest.substr(0, slash), rest.substr(std::min(slash + 1, rest.size()))};
}

Status NoRoute(const HttpRequest& request) {
  return NotFound(Format("no route {:.32} {:.128}", request.method, request.path));
}

Result<Json> Upload(const HttpRequest& request, FileStore* files) {
  const std::string* type = request.headers.Find("content-type");
  DI_ASSIGN(const std::vector<MultipartPart> parts,
            ParseMultipart(type == nullptr ? "" : *type, request.body));
  const MultipartPart* file = nullptr;
  const MultipartPart* purpose = nullptr;
  for (const MultipartPart& part : parts) {
    const MultipartPart** place = part.name == "file"      ? &file
                                  : part.name == "purpose" ? &purpose
                                                           : nullptr;
    if (place == nullptr) {
      return Invalid(Format("the form's field {:?} is not known; fields are file and purpose",
                            part.name.substr(0, 64)))
          .WithParam("file");
    }
    if (*place != nullptr) {
      return Invalid(Format("the form has two fields {:?}", part.name)).WithParam(part.name);
    }
    *place = &part;
  }
  if (file == nullptr) return Invalid("the form needs a field \"file\"").WithParam("file");
  if (purpose == nullptr ||
      std::find(std::begin(kPurposes), std::end(kPurposes), purpose->body) == std::end(kPurposes)) {
    return Invalid("the form needs a field \"purpose\", which is batch or user_data")
        .WithParam("purpose");
  }
  if (file->filename.size() > kFilenameMax) {
    return Invalid(Format("the file's name is longer than {} bytes", kFilenameMax))
        .WithParam("file");
  }
  return files->Add(file->filename, purpose->body, file->body);
}

Result<Json> AnswerFiles(const HttpRequest& request, FileStore* files) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const Target target = TargetOf(request.path, kFiles);
  if (target.id.empty()) return reads ? files->List(request.query) : Upload(request, files);
  if (!target.action.empty()) return NoRoute(request);
  return reads ? files->Get(target.id) : files->Delete(target.id);
}

Result<Json> AnswerBatch(const HttpRequest& request, BatchService* batches) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const Target target = TargetOf(request.path, kBatches);
  if (target.id.empty()) {
    if (reads) return batches->List(request.query);
    DI_ASSIGN(const Json body, Json::Parse(request.body));
    return batches->Create(body);
  }
  if (reads && target.action.empty()) return batches->Get(target.id);
  if (!reads && target.action == "cancel") return batches->Cancel(target.id);
  return NoRoute(request);
}

}  // namespace

Result<std::unique_ptr<BatchService>> OpenBatches(const ServerConfig& config) {
  return BatchService::Open({.directory = config.batch_dir,
                             .files = {.files_max = config.max_stored_files,
                                       .bytes_max = config.max_stored_file_bytes,
                                       .ttl_s = config.stored_file_ttl_s},
                             .batches_max = config.max_batches,
                             .lines_max = config.max_batch_lines,
                             .window = config.batch_window,
                             .now = UnixSeconds});
}

HttpResponse AnswerBatches(const HttpRequest& request, BatchService* batches) {
  const bool files = request.path == kFiles || request.path.starts_with("/v1/files/");
  const Target target = TargetOf(request.path, kFiles);
  if (files && target.action == "content" && request.method != "DELETE") {
    Result<std::string> content = batches->files().Content(target.id);
    if (!content.ok()) return ErrorResponse(content.status());
    return {200, "application/octet-stream", {}, *std::move(content)};
  }
  const Result<Json> answer =
      files ? AnswerFiles(request, &batches->files()) : AnswerBatch(request, batches);
  if (!answer.ok()) return ErrorResponse(answer.status());
  return {200, "application/json", {}, answer->Dump()};
}

}  // namespace deepinfer
