// A priority queue of pointers whose elements know their place, so that any can be taken out.
// Push, Remove and Pop are O(log n), Front is O(1). Keys lie in the queue itself, four children
// together, so that a large queue costs few cache misses. Elements outlive their stay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace deepinfer {

// `Position` is the int64_t member of T that holds the place: -1 while outside.
// KeyOf()(element) gives the key, fixed while inside; the least comes out first.
template <typename T, int64_t T::*Position, typename KeyOf>
class IndexedHeap {
 public:
  bool empty() const { return items_.empty(); }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  T* Front() const { return items_.front().element; }

  void Push(T* element) {
    DI_CHECK(element->*Position < 0, "element is inside");
    items_.push_back({KeyOf()(*element), element});
    SiftUp(size() - 1);
  }

  void Remove(T* element) {
    const int64_t at = element->*Position;
    DI_CHECK(at >= 0 && at < size() && items_[Index(at)].element == element, "not inside");
    const Item last = items_.back();
    items_.pop_back();
    element->*Position = -1;
    if (last.element == element) return;
    Place(last, at);
    SiftUp(at);
    SiftDown(last.element->*Position);
  }

  T* Pop() {
    T* element = Front();
    Remove(element);
    return element;
  }

 private:
  static constexpr int64_t kChildren = 4;
  struct Item {
    decltype(KeyOf()(std::declval<const T&>())) key;
    T* element;
  };

  static size_t Index(int64_t at) { return static_cast<size_t>(at); }

  void Place(const Item& item, int64_t at) {
    items_[Index(at)] = item;
    item.element->*Position = at;
  }

  void SiftUp(int64_t at) {
    const Item item = items_[Index(at)];
    while (at > 0) {
      const int64_t parent = (at - 1) / kChildren;
      if (!(item.key < items_[Index(parent)].key)) break;
      Place(items_[Index(parent)], at);
      at = parent;
    }
    Place(item, at);
  }

  void SiftDown(int64_t at) {
    const Item item = items_[Index(at)];
    for (int64_t first = kChildren * at + 1; first < size(); first = kChildren * at + 1) {
      int64_t least = first;
      for (int64_t child = first + 1; child < std::min(first + kChildren, size()); ++child) {
        if (items_[Index(child)].key < items_[Index(least)].key) least = child;
      }
      if (!(items_[Index(least)].key < item.key)) break;
      Place(items_[Index(least)], at);
      at = least;
    }
    Place(item, at);
  }

  std::vector<Item> items_;
};

}  // namespace deepinfer
