// One page of a list, as OpenAI's routes answer it. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct ListPage {
  int64_t limit = 20;
  enum class Order { kAscending, kDescending } order = Order::kDescending;
  std::string after;  // an id of the list; empty: from the start
};

// limit, order and after of a URL's query.
Result<ListPage> ReadListPage(std::string_view query, int64_t limit_max = 100);

// {"object": "list", "data", "first_id", "last_id", "has_more"} of `items`, oldest first, each with
// an "id".
Result<Json> ListPageJson(std::vector<const Json*> items, const ListPage& page);

}  // namespace deepinfer
