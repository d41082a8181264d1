#include "server/router.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

class RouterTest : public testing::Test {
 protected:
  RouterTest()
      : auth_({"key"}),
        router_(&auth_, [](int status, const std::string& message, const HttpRequest&) {
          return HttpResponse{status, "text/plain", {}, message};
        }) {
    const auto handle = [this](HttpRequest request, std::shared_ptr<ResponseWriter>) {
      handled_ = request.path;
    };
    router_.Add({"GET", "/health", handle, Route::Access::kPublic, HttpAdmission::Limit::kExempt});
    router_.Add({"POST", "/v1/completions", handle});
    router_.Add({"GET", "/v1/models/*", handle});
  }

  // 0: admitted.
  int Admit(const std::string& method, const std::string& path, const std::string& key = "") {
    HttpRequest head;
    head.method = method;
    head.path = path;
    if (!key.empty()) head.headers.Add("Authorization", "Bearer " + key);
    last_ = router_.Admit(head);
    return last_.refusal ? last_.refusal->status : 0;
  }

  Auth auth_;
  Router router_;
  std::string handled_;
  HttpAdmission last_;
};

TEST_F(RouterTest, PublicRoutesNeedNoKey) {
  EXPECT_EQ(Admit("GET", "/health"), 0);
  EXPECT_EQ(last_.limit, HttpAdmission::Limit::kExempt);
  EXPECT_EQ(Admit("HEAD", "/health"), 0);
}

TEST_F(RouterTest, EverythingElseDoes) {
  EXPECT_EQ(Admit("POST", "/v1/completions"), 401);
  EXPECT_NE(last_.refusal->headers.Find("WWW-Authenticate"), nullptr);
  EXPECT_EQ(Admit("POST", "/v1/completions", "wrong"), 401);
  EXPECT_EQ(Admit("POST", "/v1/completions", "key"), 0);
  EXPECT_EQ(last_.limit, HttpAdmission::Limit::kCounted);
  // Unknown paths, wrong methods and look-alikes of public paths, too.
  for (const char* path :
       {"/", "/unknown", "//health", "/health/", "/Health", "/health/x", "/v1/models", "*"}) {
    EXPECT_EQ(Admit("GET", path), 401) << path;
  }
  EXPECT_EQ(Admit("POST", "/health"), 401);
}

TEST_F(RouterTest, UnknownPathsAndMethods) {
  EXPECT_EQ(Admit("GET", "/unknown", "key"), 404);
  EXPECT_EQ(Admit("GET", "/v1/completions", "key"), 405);
  EXPECT_EQ(*last_.refusal->headers.Find("Allow"), "POST, OPTIONS");
  EXPECT_EQ(Admit("DELETE", "/health", "key"), 405);
  EXPECT_EQ(*last_.refusal->headers.Find("Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(Admit("get", "/health", "key"), 405);
}

TEST_F(RouterTest, OptionsAnswersWithoutAKey) {
  EXPECT_EQ(Admit("OPTIONS", "/v1/completions"), 204);
  EXPECT_EQ(*last_.refusal->headers.Find("Allow"), "POST, OPTIONS");
  EXPECT_EQ(Admit("OPTIONS", "*"), 204);
  EXPECT_EQ(Admit("OPTIONS", "/unknown"), 401);
}

TEST_F(RouterTest, PrefixRoutesNeedATail) {
  EXPECT_EQ(Admit("GET", "/v1/models/org/name", "key"), 0);
  EXPECT_EQ(Admit("GET", "/v1/models/", "key"), 404);
  HttpRequest request;
  request.method = "HEAD";
  request.path = "/v1/models/x";
  router_.Handle(std::move(request), nullptr);
  EXPECT_EQ(handled_, "/v1/models/x");
}

}  // namespace
}  // namespace deepinfer
