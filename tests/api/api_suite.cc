// Runs tests/api/*.test: every file is one test, every exchange of it is compared with what the
// file expects. `api_suite --update` rewrites the files with what the server answers now.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "base/format.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "tests/api/test_file.h"
#include "tests/api/test_server.h"

namespace deepinfer {
namespace {

enum class Mode { kCompare, kUpdate };

constexpr size_t kWidth = 96;

// JSON over several lines, but what fits on a line stays on one.
std::string Pretty(const Json& value, size_t indent) {
  std::string flat = value.Dump();
  const bool nested = value.is_array() || value.is_object();
  if (!nested || indent + flat.size() <= kWidth) return flat;
  const std::string inner(indent + 2, ' ');
  std::string out(1, value.is_array() ? '[' : '{');
  const char* separator = "\n";
  for (const Json& item : value.items()) {
    out += separator + inner + Pretty(item, indent + 2);
    separator = ",\n";
  }
  for (const auto& [key, member] : value.members()) {
    out += separator + inner;
    AppendJsonString(&out, key);
    out += ": " + Pretty(member, indent + 2);
    separator = ",\n";
  }
  return out + "\n" + std::string(indent, ' ') + (value.is_array() ? "]" : "}");
}

// What differs from run to run: times, random ids, the loop's progress.
std::string Steady(const std::string& text) {
  static const std::regex kTimes(
      R"re("(created|created_at|completed_at|steps|last_step_age_ms)":\d+)re");
  static const std::regex kIds(
      R"re("(cmpl|chatcmpl|msg|resp|call|toolu|rs|fc|ctc|in)([-_])[0-9a-f]{32})re");
  static const std::regex kRequests(R"re("request_id":"req-[0-9a-f]+")re");
  std::string out = std::regex_replace(text, kTimes, R"("$1":0)");
  out = std::regex_replace(out, kIds, R"("$1$2*)");
  return std::regex_replace(out, kRequests, R"("request_id":"*")");
}

enum class BodyKind { kJson, kLines, kText };

BodyKind KindOf(const HttpClientResponse& response) {
  const std::string* type = response.headers.Find("content-type");
  if (type == nullptr || response.body.empty()) return BodyKind::kText;
  if (type->starts_with("application/json")) return BodyKind::kJson;
  // Metrics are many: a file names the lines that it is about.
  return type->starts_with("text/plain") ? BodyKind::kLines : BodyKind::kText;
}

std::string WithoutEnd(std::string text) {
  while (text.ends_with("\n")) text.pop_back();
  return text;
}

// The answer as a file would hold it. For kLines, `expected` says which lines count; those that are
// missing are left out.
std::string Shown(const HttpClientResponse& response, const std::string& expected) {
  switch (KindOf(response)) {
    case BodyKind::kJson: {
      const Result<Json> body = Json::Parse(Steady(response.body));
      return body.ok() ? Pretty(*body, 0) : "not JSON: " + response.body;
    }
    case BodyKind::kLines: {
      std::string out;
      size_t begin = 0;
      while (begin < expected.size()) {
        const size_t end = std::min(expected.find('\n', begin), expected.size());
        const std::string line = expected.substr(begin, end - begin);
        if (("\n" + response.body).find("\n" + line + "\n") != std::string::npos) {
          out += line + "\n";
        }
        begin = end + 1;
      }
      return WithoutEnd(out);
    }
    case BodyKind::kText:
      break;
  }
  return WithoutEnd(Steady(response.body));
}

// Layout is free in expected JSON.
std::string Canonical(const HttpClientResponse& response, const std::string& expected) {
  if (KindOf(response) != BodyKind::kJson) return expected;
  const Result<Json> body = Json::Parse(expected);
  return body.ok() ? Pretty(*body, 0) : expected;
}

class FileRun {
 public:
  FileRun(std::string path, Mode mode) : path_(std::move(path)), mode_(mode) {}

  void Run() {
    Result<MappedFile> bytes = MappedFile::Open(path_);
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    Result<ApiFile> file = ParseApiFile(
        std::string(reinterpret_cast<const char*>(bytes->bytes().data()), bytes->size()));
    ASSERT_TRUE(file.ok()) << path_ << ": " << file.status().message();
    for (ApiStep& step : file->steps) {
      const Status status = RunStep(&step);
      ASSERT_TRUE(status.ok()) << path_ << ":" << step.line << ": " << step.case_name << ": "
                               << status.message();
    }
    if (mode_ == Mode::kUpdate) Write(FormatApiFile(*file));
  }

 private:
  Status RunStep(ApiStep* step) {
    if (step->kind == ApiStep::Kind::kServer) {
      server_.reset();
      DI_ASSIGN(server_, ApiTestServer::Start(step->options));
      return {};
    }
    if (server_ == nullptr) {
      DI_ASSIGN(server_, ApiTestServer::Start(""));
    }
    if (step->kind == ApiStep::Kind::kLoad) return server_->Release();
    if (step->kind == ApiStep::Kind::kLeave) return server_->Leave();
    if (step->exchange.kind == ApiExchange::Kind::kHold) return server_->Hold(step->exchange);
    return RunExchange(*step);
  }

  Status RunExchange(ApiStep& step) {
    ApiExchange& exchange = step.exchange;
    DI_ASSIGN(const HttpClientResponse response, server_->Send(exchange));
    const std::string status = Format("{}", response.status);
    const std::string answer = Shown(response, exchange.answer);
    if (mode_ == Mode::kUpdate) {
      exchange.status = status;
      for (auto& [name, value] : exchange.answer_headers) value = HeaderOf(response, name);
      exchange.answer = answer;
      return {};
    }
    const std::string place = Format("{}:{}: {}", path_, step.line, step.case_name);
    EXPECT_EQ(exchange.status, status) << place << "\n" << answer;
    for (const auto& [name, value] : exchange.answer_headers) {
      EXPECT_EQ(value, HeaderOf(response, name)) << place << ": " << name;
    }
    EXPECT_EQ(Canonical(response, exchange.answer), answer) << place;
    return {};
  }

  static std::string HeaderOf(const HttpClientResponse& response, const std::string& name) {
    const std::string* value = response.headers.Find(name);
    return value == nullptr ? "" : *value;
  }

  void Write(const std::string& text) {
    std::FILE* file = std::fopen(path_.c_str(), "wbe");
    ASSERT_NE(file, nullptr) << path_;
    ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
    ASSERT_EQ(std::fclose(file), 0);
  }

  const std::string path_;
  const Mode mode_;
  std::unique_ptr<ApiTestServer> server_;
};

class FileTest : public testing::Test {
 public:
  FileTest(std::string path, Mode mode) : path_(std::move(path)), mode_(mode) {}
  void TestBody() override { FileRun(path_, mode_).Run(); }

 private:
  const std::string path_;
  const Mode mode_;
};

int RegisterFiles(Mode mode) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/api")) {
    if (entry.path().extension() != ".test") continue;
    const std::string path = entry.path().string();
    testing::RegisterTest("Api", entry.path().stem().string().c_str(), nullptr, nullptr,
                          path.c_str(), 1,
                          [path, mode]() -> FileTest* { return new FileTest(path, mode); });
    ++count;
  }
  return count;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool update = argc > 1 && std::string_view(argv[1]) == "--update";
  using deepinfer::Mode;
  if (deepinfer::RegisterFiles(update ? Mode::kUpdate : Mode::kCompare) == 0) {
    std::fprintf(stderr, "no tests/api/*.test: run this from the root of the tree\n");
    return 1;
  }
  return RUN_ALL_TESTS();
}
