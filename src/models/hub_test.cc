#include "models/hub.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint_test_util.h"
#include "models/hub_download.h"
#include "net/test_peer.h"

namespace deepinfer {
namespace {

// Of "0123456789", by sha256sum and git hash-object.
constexpr const char* kTenSha256 =
    "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";
constexpr const char* kTenGitBlob = "ad471007bd7f5983d273b9584e5629230150fd54";

std::string Answer(const std::string& head, const std::string& body, size_t announced) {
  return Format("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", head, announced,
                body);
}
std::string Ok(const std::string& body) { return Answer("200 OK", body, body.size()); }

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

HubOptions OptionsFor(const TempDirectory& directory, const ScriptedPeer* peer) {
  HubOptions options;
  options.directory = directory.File("models");
  options.retry_wait_ms = 0;
  options.attempts_max = 3;
  if (peer != nullptr) options.endpoint = Format("http://127.0.0.1:{}", peer->port());
  return options;
}

FileDownload TenBytes(const TempDirectory& directory, const ScriptedPeer& peer) {
  FileDownload download;
  download.url = Format("http://127.0.0.1:{}/f.gguf", peer.port());
  download.path = directory.File("f.gguf");
  download.shown = "f.gguf";
  download.bytes = 10;
  download.digest = {FileDigest::Kind::kSha256, kTenSha256};
  return download;
}

TEST(HubDownload, ContinuesABrokenTransfer) {
  const TempDirectory directory;
  const ScriptedPeer peer(
      {Answer("200 OK", "01234", 10),
       Answer("206 Partial Content\r\nContent-Range: bytes 5-9/10", "56789", 5)});
  const Status status = DownloadFile(OptionsFor(directory, nullptr), TenBytes(directory, peer), {});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(ReadAll(directory.File("f.gguf")), "0123456789");
  EXPECT_NE(peer.request(1).find("bytes=5-"), std::string::npos) << peer.request(1);
  EXPECT_FALSE(std::filesystem::exists(directory.File("f.gguf.partial")));
}

TEST(HubDownload, StartsAfreshWhereRangesAreIgnored) {
  const TempDirectory directory;
  directory.Write("f.gguf.partial", "xxx");
  const ScriptedPeer peer({Ok("0123456789")});
  const Status status = DownloadFile(OptionsFor(directory, nullptr), TenBytes(directory, peer), {});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(ReadAll(directory.File("f.gguf")), "0123456789");
}

TEST(HubDownload, AWrongChecksumRemovesTheFile) {
  const TempDirectory directory;
  const ScriptedPeer peer({Ok("9876543210")});
  const Status status = DownloadFile(OptionsFor(directory, nullptr), TenBytes(directory, peer), {});
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_NE(status.message().find("checksum"), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(directory.File("f.gguf")));
  EXPECT_FALSE(std::filesystem::exists(directory.File("f.gguf.partial")));
}

TEST(HubDownload, MoreThanExpectedIsCutOff) {
  const TempDirectory directory;
  const ScriptedPeer peer({Ok("0123456789ab")});
  const Status status = DownloadFile(OptionsFor(directory, nullptr), TenBytes(directory, peer), {});
  EXPECT_NE(status.message().find("more than the 10 bytes"), std::string::npos) << status.message();
}

TEST(HubDownload, OnlyPassingFailuresAreTriedAgain) {
  const TempDirectory directory;
  const ScriptedPeer missing({Answer("404 Not Found", "", 0)});
  EXPECT_EQ(DownloadFile(OptionsFor(directory, nullptr), TenBytes(directory, missing), {}).code(),
            StatusCode::kNotFound);
  const ScriptedPeer busy({Answer("503 Busy", "", 0), Answer("429 Slow", "", 0), Ok("0123456789")});
  const Status status = DownloadFile(OptionsFor(directory, nullptr), TenBytes(directory, busy), {});
  EXPECT_TRUE(status.ok()) << status.message();
  const ScriptedPeer denied({Answer("403 Forbidden", "", 0)});
  FileDownload other = TenBytes(directory, denied);
  other.path = directory.File("g.gguf");
  EXPECT_NE(DownloadFile(OptionsFor(directory, nullptr), other, {}).message().find("HF_TOKEN"),
            std::string::npos);
}

TEST(HubDownload, Digests) {
  const TempDirectory directory;
  directory.Write("f", "0123456789");
  EXPECT_EQ(*Sha256OfFile(directory.File("f")), kTenSha256);
  EXPECT_EQ(*DigestOfFile(FileDigest::Kind::kGitBlob, directory.File("f")), kTenGitBlob);
  EXPECT_FALSE(Sha256OfFile(directory.File("absent")).ok());
}

TEST(Hub, PullsTheSafetensorsLayoutOnce) {
  const TempDirectory directory;
  const std::string listing =
      Format(R"({{"sha":"abc123","siblings":[{{"rfilename":"README.md","size":3}},)"
             R"({{"rfilename":"config.json","size":10,"blobId":"{}"}},)"
             R"({{"rfilename":"../evil.safetensors","size":1}},)"
             R"({{"rfilename":"model.safetensors","size":10,"lfs":{{"sha256":"{}"}}}},)"
             R"({{"rfilename":"pytorch_model.bin","size":9}}]}})",
             kTenGitBlob, kTenSha256);
  auto peer = std::make_unique<ScriptedPeer>(
      std::vector<std::string>{Ok(listing), Ok("0123456789"), Ok("0123456789")});
  HubOptions options = OptionsFor(directory, peer.get());
  options.token = "secret";
  struct Seen {
    uint64_t done = 0;
  } seen;
  PullProgress progress;
  progress.context = &seen;
  progress.report = [](void* context, const std::string&, uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    static_cast<Seen*>(context)->done = done;
  };
  const auto model = PullModel(options, "Org/Repo", progress);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(seen.done, 10U);
  EXPECT_EQ(model->name, "Org/Repo");
  EXPECT_EQ(model->bytes, 20U);
  EXPECT_EQ(model->path, directory.File("models/org--repo"));
  EXPECT_NE(peer->request(0).find("GET /api/models/Org/Repo/revision/main?blobs=true"),
            std::string::npos);
  EXPECT_NE(peer->request(2).find("GET /Org/Repo/resolve/abc123/model.safetensors"),
            std::string::npos);
  EXPECT_NE(peer->request(2).find("Bearer secret"), std::string::npos);
  peer.reset();  // the rest needs no network
  EXPECT_TRUE(PullModel(options, "Org/Repo").ok());
  EXPECT_EQ(*ResolveModel(options, "org/repo"), model->path);
  EXPECT_EQ(ListModels(options.directory)->size(), 1U);
  // A file that shrank is no complete model any more.
  directory.Write("models/org--repo/config.json", "{}");
  EXPECT_TRUE(ListModels(options.directory)->empty());
}

TEST(Hub, ChoosesOneGguf) {
  const std::string listing =
      Format(R"({{"sha":"c","siblings":[{{"rfilename":"m-Q4_K_M.gguf","size":10,)"
             R"("lfs":{{"sha256":"{0}"}}}},{{"rfilename":"m-Q8_0.gguf","size":10}}]}})",
             kTenSha256);
  const TempDirectory directory;
  const ScriptedPeer peer({Ok(listing), Ok(listing), Ok("0123456789")});
  const HubOptions options = OptionsFor(directory, &peer);
  const auto unclear = PullModel(options, "o/r");
  ASSERT_FALSE(unclear.ok());
  EXPECT_NE(unclear.status().message().find("m-Q4_K_M.gguf m-Q8_0.gguf"), std::string::npos)
      << unclear.status().message();
  const auto model = PullModel(options, "o/r:q4_k_m");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->path, directory.File("models/o--r@q4_k_m/m-Q4_K_M.gguf"));
  EXPECT_EQ(*ResolveModel(options, "O/R:Q4_K_M"), model->path);
}

TEST(Hub, UrlsWithChecksums) {
  const TempDirectory directory;
  const ScriptedPeer peer({Ok("0123456789")});
  const HubOptions options = OptionsFor(directory, &peer);
  const std::string url = options.endpoint + "/files/tiny.gguf";
  EXPECT_FALSE(PullModel(options, url + "#md5=1").ok());
  const auto model = PullModel(options, Format("{}#sha256={}", url, kTenSha256));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(*ResolveModel(options, "tiny"), model->path);
  const auto other = PullModel(options, "http://other.example/tiny.gguf");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("already cached"), std::string::npos);
}

TEST(Hub, BadSourcesAreRefused) {
  const TempDirectory directory;
  const HubOptions options = OptionsFor(directory, nullptr);
  for (const char* source : {"name", "../x/y", "a/b/c", "a/..", "a/b:", "a/b:../c", "a/b@", "-x/y",
                             "http://h/x.bin", "http://h/.gguf", "a b/c"}) {
    EXPECT_EQ(PullModel(options, source).status().code(), StatusCode::kInvalid) << source;
  }
  EXPECT_FALSE(std::filesystem::exists(options.directory));
}

// A stand-in for Python that writes `content` where the script would put the member.
std::string FakePython(const TempDirectory& directory, const std::string& content, int exit_code) {
  directory.Write("python", Format("#!/bin/sh\nprintf '%s' '{}' > \"$5\"\n"
                                   "test \"$3 $4\" = 'p==1 d/m.gguf' || exit 9\nexit {}\n",
                                   content, exit_code));
  const std::string path = directory.File("python");
  ::chmod(path.c_str(), 0755);
  return path;
}

TEST(Hub, DefaultModelFromAPackage) {
  const TempDirectory directory;
  HubOptions options = OptionsFor(directory, nullptr);
  options.default_model = {"demo", "p", "1", "d/m.gguf", kTenSha256};
  EXPECT_EQ(ResolveModel(options, "").status().code(), StatusCode::kNotFound);

  options.python = FakePython(directory, "0123456789", 3);
  EXPECT_NE(PullModel(options, "").status().message().find("exit status 3"), std::string::npos);
  options.python = FakePython(directory, "something else", 0);
  EXPECT_NE(PullModel(options, "").status().message().find("checksum"), std::string::npos);
  options.python = directory.File("absent");
  EXPECT_NE(PullModel(options, "").status().message().find("install Python 3"), std::string::npos);
  EXPECT_EQ(ListModels(options.directory)->size(), 0U);

  options.python = FakePython(directory, "0123456789", 0);
  const auto model = PullModel(options, "default");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(*ResolveModel(options, ""), model->path);
  EXPECT_EQ(*ResolveModel(options, "DEMO"), directory.File("models/demo/m.gguf"));
  options.default_path = "/some/checkpoint";
  EXPECT_EQ(*ResolveModel(options, ""), "/some/checkpoint");
}

TEST(Hub, UnknownNamesSayWhatIsCached) {
  const TempDirectory directory;
  const HubOptions options = OptionsFor(directory, nullptr);
  EXPECT_EQ(*ResolveModel(options, directory.path()), directory.path());
  const std::string message = ResolveModel(options, "x/y").status().message();
  EXPECT_NE(message.find("has no models"), std::string::npos) << message;
  EXPECT_NE(message.find("deepinfer model pull x/y"), std::string::npos) << message;
}

}  // namespace
}  // namespace deepinfer
