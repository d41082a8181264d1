#include "server/file_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/format.h"
#include "server/state_file.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

std::atomic<int64_t> now_s{1000};
int64_t Now() { return now_s; }

class FileStoreTest : public testing::Test {
 protected:
  FileStoreTest() {
    now_s = 1000;
    char name[] = "/tmp/deepinfer_files_XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~FileStoreTest() override { fs::remove_all(directory_); }
  std::unique_ptr<FileStore> Open(FileStore::Limits limits = {10, 1000, 60}) const {
    auto store = FileStore::Open(directory_, limits, Now);
    EXPECT_TRUE(store.ok()) << store.status().message();
    return store.ok() ? *std::move(store) : nullptr;
  }
  static std::string IdOf(const Result<Json>& file) {
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? file->Find("id")->string() : "";
  }
  static std::string ReadAll(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }
  static void WriteAll(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }

  std::string directory_;
};

TEST_F(FileStoreTest, KeepsFilesOverARestart) {
  const std::string id = IdOf(Open()->Add("a.jsonl", "batch", "hello"));
  ++now_s;
  const std::string empty = IdOf(Open()->Add("b", "user_data", ""));
  auto store = Open();
  EXPECT_EQ(*store->Content(id), "hello");
  EXPECT_EQ(*store->Content(empty), "");
  EXPECT_EQ(store->Get(id)->Find("filename")->string(), "a.jsonl");
  EXPECT_EQ(store->List("purpose=batch")->Find("data")->items().size(), 1U);
  EXPECT_EQ(store->List("limit=1&order=asc")->Find("first_id")->string(), id);
  EXPECT_TRUE(*store->List("limit=1")->GetBool("has_more", false));
  EXPECT_TRUE(store->Delete(id).ok());
  EXPECT_EQ(store->Get(id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Open()->Content(id).status().code(), StatusCode::kNotFound);
  for (const char* path : {"../files", "", "file-", "/etc/passwd"}) {
    EXPECT_EQ(store->Content(path).status().code(), StatusCode::kNotFound) << path;
  }
}

TEST_F(FileStoreTest, LimitsHoldAndSayTheirNames) {
  auto store = Open({2, 10, 60});
  const std::string id = IdOf(store->Add("a", "batch", "12345"));
  const Status bytes = store->Add("b", "batch", "123456").status();
  EXPECT_EQ(bytes.code(), StatusCode::kExhausted);
  EXPECT_NE(bytes.message().find("max_stored_file_bytes"), std::string::npos);
  IdOf(store->Add("b", "batch", "1"));
  const Status files = store->Add("c", "batch", "1").status();
  EXPECT_EQ(files.code(), StatusCode::kExhausted);
  EXPECT_NE(files.message().find("max_stored_files"), std::string::npos);
  EXPECT_EQ(store->bytes(), 6);
  EXPECT_TRUE(store->Delete(id).ok());
  IdOf(store->Add("c", "batch", "123456789"));
}

TEST_F(FileStoreTest, WhatIsHeldStays) {
  auto store = Open();
  const std::string id = IdOf(store->Add("a", "batch", "x"));
  ASSERT_TRUE(store->Hold(id).ok());
  EXPECT_EQ(store->Delete(id).status().code(), StatusCode::kInvalid);
  now_s += 61;
  EXPECT_TRUE(store->Get(id).ok());
  store->LetGo(id);
  EXPECT_EQ(store->Get(id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->bytes(), 0);
}

TEST_F(FileStoreTest, AdoptsOnceHoweverOftenItIsTold) {
  const std::string path = directory_ + "/made_elsewhere";
  WriteAll(path, "result");
  for (int i = 0; i < 3; ++i) {
    auto store = Open();
    ASSERT_TRUE(store->Adopt("file-x-output", "out", "batch_output", path).ok());
    EXPECT_EQ(*store->Content("file-x-output"), "result");
    EXPECT_EQ(store->bytes(), 6);
  }
}

TEST_F(FileStoreTest, ACrashLeavesWholeFilesAlone) {
  const std::string id = IdOf(Open()->Add("a", "batch", "x"));
  WriteAll(directory_ + "/file-torn", "ha");            // an upload without its description
  WriteAll(directory_ + "/file-gone.json", "ha");       // a description that is none
  WriteAll(directory_ + "/" + id + ".json.new", "ha");  // a description that was being replaced
  auto store = Open();
  EXPECT_EQ(store->List("")->Find("data")->items().size(), 1U);
  EXPECT_FALSE(fs::exists(directory_ + "/file-torn"));
  EXPECT_EQ(*store->Content(id), "x");
}

TEST_F(FileStoreTest, StateFilesAreCheckedByteByByte) {
  const std::string path = directory_ + "/state.json";
  Json value = Json::Object();
  value.Set("a", Json::Int(1));
  ASSERT_TRUE(WriteStateFile(path, value).ok());
  EXPECT_EQ(ReadStateFile(path)->Dump(), value.Dump());
  const std::string good = ReadAll(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    WriteAll(path, bad);
    EXPECT_FALSE(ReadStateFile(path).ok()) << i;
    WriteAll(path, good.substr(0, i));
    EXPECT_FALSE(ReadStateFile(path).ok()) << i;
  }
}

}  // namespace
}  // namespace deepinfer
