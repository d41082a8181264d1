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
    if (entry->output != nullptr) Erase(entry);
    entry = next;
  }
}

void ResponseStore::Begin(const std::string& id, Json body, std::vector<ResponseItems> history,
                          ResponseItems input, std::function<void()> cancel) {
  // What it continues may be deleted before it, so it counts here as well.
  int64_t bytes = BytesOf(input) + static_cast<int64_t>(body.Dump().size());
  for (const ResponseItems& items : history) bytes += BytesOf(items);
  std::lock_guard lock(mutex_);
  if (const auto same = by_id_.find(id); same != by_id_.end()) Erase(same->second);
  Entry entry;
  entry.id = id;
  entry.body = std::move(body);
  entry.history = std::move(history);
  entry.input = std::move(input);
  entry.cancel = std::move(cancel);
  entry.expires_us = clock_->NowUs() + limits_.ttl_s * 1'000'000;
  entry.bytes = bytes;
  bytes_ += bytes;
  entries_.push_back(std::move(entry));
  by_id_[id] = std::prev(entries_.end());
  Trim();
}

void ResponseStore::End(const std::string& id, Json body, ResponseItems output) {
  const int64_t bytes = BytesOf(output);
  std::function<void()> cancel;  // goes after the lock
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  Entry& entry = *found->second;
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
