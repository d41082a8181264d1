#include "engine/indexed_heap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace deepinfer {
namespace {

struct Element {
  int key = 0;
  int64_t position = -1;
};
struct KeyOfElement {
  int operator()(const Element& element) const { return element.key; }
};

TEST(IndexedHeap, AgreesWithASetUnderRandomTraffic) {
  std::mt19937 rng(5);
  std::vector<Element> elements(500);
  for (size_t i = 0; i < elements.size(); ++i) elements[i].key = static_cast<int>(i * 7919 % 1000);
  IndexedHeap<Element, &Element::position, KeyOfElement> heap;
  std::multiset<int> expected;
  for (int step = 0; step < 50000; ++step) {
    Element& element = elements[rng() % elements.size()];
    if (element.position >= 0) {
      heap.Remove(&element);
      expected.erase(expected.find(element.key));
      EXPECT_EQ(element.position, -1);
    } else {
      heap.Push(&element);
      expected.insert(element.key);
    }
    ASSERT_EQ(heap.size(), static_cast<int64_t>(expected.size()));
    if (!heap.empty()) {
      ASSERT_EQ(heap.Front()->key, *expected.begin());
    }
  }
  while (!heap.empty()) {
    ASSERT_EQ(heap.Pop()->key, *expected.begin());
    expected.erase(expected.begin());
  }
}

}  // namespace
}  // namespace deepinfer
