#include "api/response_store.h"

#include <gtest/gtest.h>

#include <map>

#include "base/format.h"

namespace deepinfer {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

class ResponseStoreTest : public testing::Test {
 protected:
  static Json Body(const std::string& id) {
    Json body = Json::Object();
    body.Set("id", Json::String(id));
    body.Set("status", Json::String("in_progress"));
    return body;
  }
  static ResponseItems Items(const std::string& text, int count = 1) {
    std::vector<Json> items;
    for (int i = 0; i < count; ++i) {
      Json item = Json::Object();
      item.Set("id", Json::String(Format("{}_{}", text, i)));
      items.push_back(std::move(item));
    }
    return std::make_shared<const std::vector<Json>>(std::move(items));
  }
  void Begin(ResponseStore* store, const std::string& id, std::vector<ResponseItems> history = {}) {
    const auto handle =
        store->Begin(id, Body(id), std::move(history), Items("in_" + id), [this] { ++cancels_; });
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    handles_[id] = *handle;
  }
  void End(ResponseStore* store, const std::string& id) {
    Json body = Body(id);
    body.Set("status", Json::String("completed"));
    store->End(handles_[id], std::move(body), Items("out_" + id));
  }
  static std::string StatusOf(ResponseStore* store, const std::string& id) {
    const Result<Json> body = store->Get(id);
    return body.ok() ? body->Find("status")->string() : "none";
  }

  ManualClock clock_;
  int cancels_ = 0;
  std::map<std::string, ResponseStore::Handle> handles_;
};

TEST_F(ResponseStoreTest, KeepsWhatItIsTold) {
  ResponseStore store({.responses_max = 10, .bytes_max = 1 << 20, .ttl_s = 60}, &clock_);
  Begin(&store, "a");
  EXPECT_EQ(StatusOf(&store, "a"), "in_progress");
  EXPECT_FALSE(store.History("a").ok());
  End(&store, "a");
  EXPECT_EQ(StatusOf(&store, "a"), "completed");
  const Result<std::vector<ResponseItems>> history = store.History("a");
  ASSERT_TRUE(history.ok());
  ASSERT_EQ(history->size(), 2U);
  Begin(&store, "b", *history);
  End(&store, "b");
  EXPECT_EQ(store.History("b")->size(), 4U);
  EXPECT_TRUE(store.Delete("a").ok());
  EXPECT_EQ(store.Get("a").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store.History("b")->size(), 4U);
  EXPECT_TRUE(store.Delete("b").ok());
  EXPECT_EQ(store.bytes(), 0);
  EXPECT_EQ(cancels_, 0);
}

TEST_F(ResponseStoreTest, CancelStays) {
  ResponseStore store({.responses_max = 10, .bytes_max = 1 << 20, .ttl_s = 60}, &clock_);
  Begin(&store, "a");
  ASSERT_TRUE(store.Cancel("a").ok());
  EXPECT_EQ(cancels_, 1);
  End(&store, "a");
  EXPECT_EQ(StatusOf(&store, "a"), "cancelled");
  EXPECT_TRUE(store.Cancel("a").ok());
  EXPECT_EQ(cancels_, 1);
  Begin(&store, "b");
  EXPECT_TRUE(store.Delete("b").ok());
  EXPECT_EQ(cancels_, 2);
  End(&store, "b");
  EXPECT_EQ(StatusOf(&store, "b"), "none");
  Begin(&store, "c");
  End(&store, "c");
  EXPECT_EQ(store.Cancel("c").status().code(), StatusCode::kInvalid);
}

TEST_F(ResponseStoreTest, OfTwoWithOneIdOneGetsIt) {
  ResponseStore store({.responses_max = 10, .bytes_max = 1 << 20, .ttl_s = 60}, &clock_);
  Begin(&store, "a");
  EXPECT_EQ(store.Begin("a", Body("a"), {}, Items("b"), [] {}).status().code(),
            StatusCode::kInvalid);
  const ResponseStore::Handle old = handles_["a"];
  EXPECT_TRUE(store.Delete("a").ok());
  Begin(&store, "a");
  store.End(old, Body("old"), Items("old"));  // of the one that is deleted
  EXPECT_EQ(StatusOf(&store, "a"), "in_progress");
  End(&store, "a");
  EXPECT_EQ(StatusOf(&store, "a"), "completed");
}

TEST_F(ResponseStoreTest, WhatIsCancelledCanBeContinuedAtOnce) {
  ResponseStore store({.responses_max = 10, .bytes_max = 1 << 20, .ttl_s = 60}, &clock_);
  Begin(&store, "a");
  EXPECT_EQ(store.History("a").status().code(), StatusCode::kInvalid);
  ASSERT_TRUE(store.Cancel("a").ok());
  ASSERT_TRUE(store.History("a").ok());
  EXPECT_EQ(store.History("a")->back()->size(), 0U);
  End(&store, "a");
  EXPECT_EQ(store.History("a")->back()->size(), 1U);
}

TEST_F(ResponseStoreTest, DropsTheOldest) {
  ResponseStore store({.responses_max = 2, .bytes_max = 1 << 20, .ttl_s = 60}, &clock_);
  for (const char* id : {"a", "b", "c"}) Begin(&store, id);
  EXPECT_EQ(StatusOf(&store, "a"), "in_progress");  // what runs stays
  for (const char* id : {"a", "b", "c"}) End(&store, id);
  EXPECT_EQ(StatusOf(&store, "a"), "none");
  EXPECT_EQ(StatusOf(&store, "b"), "completed");
  clock_.Advance(61 * kSecondUs);
  EXPECT_EQ(StatusOf(&store, "b"), "none");
  EXPECT_EQ(store.bytes(), 0);
}

TEST_F(ResponseStoreTest, BytesAreBounded) {
  ResponseStore store({.responses_max = 1000, .bytes_max = 1000, .ttl_s = 60}, &clock_);
  std::vector<ResponseItems> history;
  for (int i = 0; i < 50; ++i) {
    const std::string id = Format("r{}", i);
    Begin(&store, id, history);
    End(&store, id);
    EXPECT_LE(store.bytes(), 1000);
    const auto next = store.History(id);
    if (next.ok()) history = *next;
  }
  EXPECT_EQ(StatusOf(&store, "r0"), "none");
}

TEST_F(ResponseStoreTest, Pages) {
  ResponseStore store({.responses_max = 10, .bytes_max = 1 << 20, .ttl_s = 60}, &clock_);
  ASSERT_TRUE(store.Begin("a", Body("a"), {}, Items("i", 5), [] {}).ok());
  const auto page = [&](const char* query) {
    const Result<Json> list = store.InputItems("a", query);
    if (!list.ok()) return "error " + list.status().param();
    std::string out = list->Find("has_more")->Dump();
    for (const Json& item : list->Find("data")->items()) out += " " + item.Find("id")->string();
    return out;
  };
  EXPECT_EQ(page(""), "false i_4 i_3 i_2 i_1 i_0");
  EXPECT_EQ(page("order=asc&limit=2"), "true i_0 i_1");
  EXPECT_EQ(page("order=asc&limit=2&after=i_3"), "false i_4");
  EXPECT_EQ(page("after=i_0"), "false");
  EXPECT_EQ(page("after=none"), "error after");
  EXPECT_EQ(page("limit=101"), "error limit");
  EXPECT_EQ(page("limit=1x"), "error limit");
  EXPECT_EQ(page("order=up"), "error order");
}

}  // namespace
}  // namespace deepinfer
