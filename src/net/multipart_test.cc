#include "net/multipart.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr char kType[] = "multipart/form-data; boundary=XX";

std::string Part(const std::string& head, const std::string& body) {
  return "--XX\r\n" + head + "\r\n\r\n" + body + "\r\n";
}

TEST(ParseMultipart, ReadsFieldsAndFiles) {
  const std::string body =
      Part("Content-Disposition: form-data; name=\"purpose\"", "batch") +
      Part(
          "content-disposition: form-data; name=file; filename=\"a \\\"b\\\".jsonl\"\r\n"
          "Content-Type: application/octet-stream",
          "{}\r\n--X\r\n--XY") +
      "--XX--\r\n";
  const auto parts = ParseMultipart("Multipart/Form-Data; charset=x; boundary=\"XX\"", body);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  ASSERT_EQ(parts->size(), 2U);
  EXPECT_EQ((*parts)[0].name, "purpose");
  EXPECT_EQ((*parts)[0].filename, "");
  EXPECT_EQ((*parts)[0].body, "batch");
  EXPECT_EQ((*parts)[1].name, "file");
  EXPECT_EQ((*parts)[1].filename, "a \"b\".jsonl");
  EXPECT_EQ((*parts)[1].body, "{}\r\n--X\r\n--XY");
}

TEST(ParseMultipart, TakesEmptyFormsPreamblesAndEmptyBodies) {
  EXPECT_EQ(ParseMultipart(kType, "--XX--")->size(), 0U);
  const auto parts = ParseMultipart(
      kType, "ignored\r\n" + Part("Content-Disposition: form-data; name=a", "") + "--XX--");
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  EXPECT_EQ(parts->at(0).body, "");
}

TEST(ParseMultipart, RefusesWhatIsMalformed) {
  const std::string head = "Content-Disposition: form-data; name=a";
  const std::string good = Part(head, "b") + "--XX--";
  EXPECT_TRUE(ParseMultipart(kType, good).ok());
  for (const char* type : {"", "application/json", "multipart/form-data",
                           "multipart/form-data; boundary=", "multipart/mixed; boundary=XX",
                           "multipart/form-data; boundary=\"XX"}) {
    EXPECT_FALSE(ParseMultipart(type, good).ok()) << type;
  }
  EXPECT_FALSE(ParseMultipart("multipart/form-data; boundary=" + std::string(71, 'X'), good).ok());
  // Cut anywhere before the dashes that end it, it is no form.
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(ParseMultipart(kType, good.substr(0, n)).ok()) << n;
  }
  for (const std::string& bad :
       {Part("Content-Disposition: form-data", "b"), Part("X: y", "b"), Part("no colon", "b"),
        Part(head + "\r\n" + head, "b"), Part("Content-Disposition: attachment; name=a", "b"),
        Part(std::string(kMultipartHeaderBytesMax, 'x') + ": y\r\n" + head, "b")}) {
    EXPECT_FALSE(ParseMultipart(kType, bad + "--XX--").ok()) << bad.substr(0, 200);
  }
  std::string many;
  for (size_t i = 0; i <= kMultipartPartsMax; ++i) many += Part(head, "b");
  EXPECT_FALSE(ParseMultipart(kType, many + "--XX--").ok());
}

}  // namespace
}  // namespace deepinfer
