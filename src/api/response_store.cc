#include "api/response_store.h"

#include <utility>

#include "api/list_page.h"
#include "base/format.h"

namespace deepinfer {
namespace {

int64_t BytesOf(const ResponseItems& items) {
  int64_t bytes = 0;
  if (items == nullptr) return bytes;
  for (const Json& item : *items) bytes += static_cast<int64_t>(item.Dump().size());
  return bytes;
}

Status Unknown(std::string_view id) {
  return NotFound(Format("no response {:?} is stored: it may have expired, been deleted, or been "
                         "made with \"store\": false",
                         std::string(id.substr(0, 128))))
      .WithParam("response_id");
}

}  // namespace

ResponseStore::Entry* ResponseStore::Find(std::string_view id) {
  Trim();
  const auto found = by_id_.find(std::string(id));
  return found == by_id_.end() ? nullptr : &*found->second;
}

void ResponseStore::Erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  running_.erase(entry->handle);
  entries_.erase(entry);
}

// Drops what is too old, then the oldest until the limits hold. What runs stays.
void ResponseStore::Trim() {
  const int64_t now_us = clock_->NowUs();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    const bool over =
        static_cast<int64_t>(entries_.size()) > limits_.responses_max || bytes_ > limits_.bytes_max;
    const bool expired = entry->expires_us <= now_us;
    if (!over && !expired) return;
    if (!running_.contains(entry->handle)) Erase(entry);
    entry = next;
  }
}

Result<ResponseStore::Handle> ResponseStore::Begin(const std::string& id, Json body,
                                                   std::vector<ResponseItems> history,
                                                   ResponseItems input,
                                                   std::function<void()> cancel) {
  int64_t bytes = BytesOf(input) + static_cast<int64_t>(body.Dump().size());
  for (const ResponseItems& items : history) bytes += BytesOf(items);
  std::lock_guard lock(mutex_);
  if (Find(id) != nullptr) {
    return Invalid(Format("\"request_id\": a response {} is stored already", id))
        .WithParam("request_id");
  }
  Entry entry;
  entry.id = id;
  entry.handle = ++last_handle_;
  entry.body = std::move(body);
  entry.history = std::move(history);
  entry.input = std::move(input);
  entry.cancel = std::move(cancel);
  entry.expires_us = clock_->NowUs() + limits_.ttl_s * 1'000'000;
  entry.bytes = bytes;
  bytes_ += bytes;
  const Handle handle = entry.handle;
  entries_.push_back(std::move(entry));
  by_id_[id] = running_[handle] = std::prev(entries_.end());
  Trim();
  return handle;
}

void ResponseStore::End(Handle handle, Json body, ResponseItems output) {
  const int64_t bytes = BytesOf(output);
  std::function<void()> cancel;  // goes after the lock
  std::lock_guard lock(mutex_);
  const auto found = running_.find(handle);
  if (found == running_.end()) return;  // deleted meanwhile
  Entry& entry = *found->second;
  running_.erase(found);
  if (entry.cancelled) body.Set("status", Json::String("cancelled"));
  entry.body = std::move(body);
  entry.output = output == nullptr ? std::make_shared<const std::vector<Json>>() : output;
  cancel = std::move(entry.cancel);
  entry.cancel = nullptr;
  entry.bytes += bytes;
  bytes_ += bytes;
  Trim();
}

Result<Json> ResponseStore::Get(std::string_view id) {
  std::lock_guard lock(mutex_);
  const Entry* entry = Find(id);
  if (entry == nullptr) return Unknown(id);
  return entry->body;
}

Result<Json> ResponseStore::Delete(std::string_view id) {
  std::function<void()> cancel;
  {
    std::lock_guard lock(mutex_);
    Entry* entry = Find(id);
    if (entry == nullptr) return Unknown(id);
    cancel = std::move(entry->cancel);
    Erase(by_id_.at(entry->id));
  }
  if (cancel) cancel();
  Json answer = Json::Object();
  answer.Set("id", Json::String(std::string(id)));
  answer.Set("object", Json::String("response"));
  answer.Set("deleted", Json::Bool(true));
  return answer;
}

Result<Json> ResponseStore::Cancel(std::string_view id) {
  std::function<void()> cancel;
  Json body;
  {
    std::lock_guard lock(mutex_);
    Entry* entry = Find(id);
    if (entry == nullptr) return Unknown(id);
    if (entry->output != nullptr && !entry->cancelled) {
      return Invalid(Format("the response {:?} is over: there is nothing to cancel", entry->id))
          .WithParam("response_id");
    }
    entry->cancelled = true;
    if (entry->output == nullptr) entry->output = std::make_shared<const std::vector<Json>>();
    entry->body.Set("status", Json::String("cancelled"));
    cancel = entry->cancel;
    body = entry->body;
  }
  if (cancel) cancel();
  return body;
}

Result<Json> ResponseStore::InputItems(std::string_view id, std::string_view query) {
  DI_ASSIGN(const ListPage page, ReadListPage(query));
  ResponseItems input;
  {
    std::lock_guard lock(mutex_);
    const Entry* entry = Find(id);
    if (entry == nullptr) return Unknown(id);
    input = entry->input;
  }
  std::vector<const Json*> items;
  for (const Json& item : *input) items.push_back(&item);
  return ListPageJson(std::move(items), page);
}

Result<std::vector<ResponseItems>> ResponseStore::History(std::string_view id) {
  std::lock_guard lock(mutex_);
  const Entry* entry = Find(id);
  if (entry == nullptr) return Unknown(id);
  if (entry->output == nullptr) {
    return Invalid(Format("the response {:?} still runs", entry->id));
  }
  std::vector<ResponseItems> history = entry->history;
  history.push_back(entry->input);
  history.push_back(entry->output);
  return history;
}

int64_t ResponseStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace deepinfer
