// A priority queue of pointers whose elements know their place, so that any can be taken out.
// Push, Remove and Pop are O(log n), Front is O(1). Elements outlive their stay.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace deepinfer {

// `Position` is the int64_t member of T that holds the place: -1 while outside.
// Before()(a, b): a comes out before b; a strict order.
template <typename T, int64_t T::*Position, typename Before>
class IndexedHeap {
 public:
  bool empty() const { return items_.empty(); }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  T* Front() const { return items_.front(); }
  const std::vector<T*>& items() const { return items_; }

  void Push(T* item) {
    DI_CHECK(item->*Position < 0, "element is inside");
    items_.push_back(item);
    item->*Position = size() - 1;
    SiftUp(size() - 1);
  }

  void Remove(T* item) {
    const int64_t at = item->*Position;
    DI_CHECK(at >= 0 && at < size() && items_[Index(at)] == item, "element is not inside");
    T* last = items_.back();
    items_.pop_back();
    item->*Position = -1;
    if (last == item) return;
    Place(last, at);
    SiftUp(at);
    SiftDown(last->*Position);
  }

  T* Pop() {
    T* item = Front();
    Remove(item);
    return item;
  }

 private:
  static size_t Index(int64_t at) { return static_cast<size_t>(at); }

  void Place(T* item, int64_t at) {
    items_[Index(at)] = item;
    item->*Position = at;
  }

  void SiftUp(int64_t at) {
    T* item = items_[Index(at)];
    while (at > 0) {
      const int64_t parent = (at - 1) / 2;
      if (!Before()(*item, *items_[Index(parent)])) break;
      Place(items_[Index(parent)], at);
      at = parent;
    }
    Place(item, at);
  }

  void SiftDown(int64_t at) {
    T* item = items_[Index(at)];
    for (int64_t child = 2 * at + 1; child < size(); child = 2 * at + 1) {
      if (child + 1 < size() && Before()(*items_[Index(child + 1)], *items_[Index(child)])) ++child;
      if (!Before()(*items_[Index(child)], *item)) break;
      Place(items_[Index(child)], at);
      at = child;
    }
    Place(item, at);
  }

  std::vector<T*> items_;
};

}  // namespace deepinfer
