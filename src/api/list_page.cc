#include "api/list_page.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/format.h"
#include "net/http_target.h"

namespace deepinfer {
namespace {

const std::string& IdOf(const Json& item) {
  static const std::string kNone;
  const Json* id = item.Find("id");
  return id == nullptr ? kNone : id->string();
}

}  // namespace

Result<ListPage> ReadListPage(std::string_view query, int64_t limit_max) {
  ListPage page;
  if (const std::optional<std::string> limit = QueryValue(query, "limit")) {
    const char* end = limit->data() + limit->size();
    const auto read = std::from_chars(limit->data(), end, page.limit);
    if (read.ec != std::errc() || read.ptr != end || page.limit < 1 || page.limit > limit_max) {
      return Invalid(Format("limit is {:?}, allowed is 1..{}", limit->substr(0, 32), limit_max))
          .WithParam("limit");
    }
  }
  if (const std::optional<std::string> order = QueryValue(query, "order")) {
    if (*order != "asc" && *order != "desc") {
      return Invalid(Format("order is {:?}, allowed are asc and desc", order->substr(0, 32)))
          .WithParam("order");
    }
    page.order = *order == "asc" ? ListPage::Order::kAscending : ListPage::Order::kDescending;
  }
  page.after = QueryValue(query, "after").value_or("");
  return page;
}

Result<Json> ListPageJson(std::vector<const Json*> items, const ListPage& page) {
  if (page.order == ListPage::Order::kDescending) std::reverse(items.begin(), items.end());
  auto begin = items.begin();
  if (!page.after.empty()) {
    begin = std::find_if(begin, items.end(),
                         [&](const Json* item) { return IdOf(*item) == page.after; });
    if (begin == items.end()) {
      return Invalid(Format("no item {:?} is part of the list", page.after.substr(0, 128)))
          .WithParam("after");
    }
    ++begin;
  }
  const auto end = begin + std::min<ptrdiff_t>(page.limit, items.end() - begin);
  Json answer = Json::Object();
  answer.Set("object", Json::String("list"));
  Json& data = answer.Set("data", Json::Array());
  for (auto item = begin; item != end; ++item) data.Push(**item);
  answer.Set("first_id", begin == end ? Json() : Json::String(IdOf(**begin)));
  answer.Set("last_id", begin == end ? Json() : Json::String(IdOf(**(end - 1))));
  answer.Set("has_more", Json::Bool(end != items.end()));
  return answer;
}

}  // namespace deepinfer
