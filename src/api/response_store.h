// Keeps responses of /v1/responses so that clients can read, continue, cancel and delete them:
// bounded in number, bytes and age. Safe on any thread; must outlive the calls that fill it.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "deepinfer/status.h"

namespace deepinfer {

// Items of a conversation in their order; shared by the responses that continue it.
using ResponseItems = std::shared_ptr<const std::vector<Json>>;

class ResponseStore {
 public:
  struct Limits {
    int64_t responses_max = 0;
    int64_t bytes_max = 0;
    int64_t ttl_s = 0;
  };

  // `clock` must outlive this.
  ResponseStore(const Limits& limits, const Clock* clock) : limits_(limits), clock_(clock) {}

  // Names the entry that one Begin made, whatever happens to its id.
  using Handle = uint64_t;  // 0: none

  // A response that runs. `history`: what it continues; `cancel` ends it. It is dropped when it
  // does not fit even alone; the oldest finished ones make room. An error when the id is taken:
  // of two at once, one gets it.
  Result<Handle> Begin(const std::string& id, Json body, std::vector<ResponseItems> history,
                       ResponseItems input, std::function<void()> cancel);
  // The response is over. What Cancel has ended stays "cancelled".
  void End(Handle handle, Json body, ResponseItems output);

  Result<Json> Get(std::string_view id);
  // {"id", "object": "response", "deleted": true}. A running response is cancelled.
  Result<Json> Delete(std::string_view id);
  // The body, which says "cancelled"; from now on it can be continued, with what was said by its
  // end as soon as that is known. An error when the response is over.
  Result<Json> Cancel(std::string_view id);
  // A page of the input: {"object": "list", "data", "first_id", "last_id", "has_more"}. `query` is
  // that of the URL: limit, order, after.
  Result<Json> InputItems(std::string_view id, std::string_view query);
  // Everything said up to the end of a finished response.
  Result<std::vector<ResponseItems>> History(std::string_view id);

  int64_t bytes() const;

 private:
  struct Entry {
    std::string id;
    Handle handle = 0;
    Json body;
    std::vector<ResponseItems> history;
    ResponseItems input, output;  // no output: it runs
    std::function<void()> cancel;
    bool cancelled = false;
    int64_t expires_us = 0;
    int64_t bytes = 0;  // with its history
  };
  using Entries = std::list<Entry>;

  Entry* Find(std::string_view id);
  void Erase(Entries::iterator entry);
  void Trim();

  const Limits limits_;
  const Clock* clock_;
  mutable std::mutex mutex_;
  Entries entries_;  // oldest first
  std::unordered_map<std::string, Entries::iterator> by_id_;
  std::unordered_map<Handle, Entries::iterator> running_;  // Begin without End
  Handle last_handle_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace deepinfer
