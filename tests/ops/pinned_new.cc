// With BACKEND=cuda every array that a test makes lies in pinned memory, where a device can read
// and write it, and every launch ends before it returns: tests hand vectors to stages and look at
// them afterwards, as on a CPU. Part of the programs that are built with the CUDA device. Any
// thread.
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <new>

#include "base/env.h"

namespace {

constexpr size_t kHeader = 64;  // before each block: its size class
constexpr int kClassFirst = 7;  // 128 bytes
constexpr int kClassLast = 40;
constexpr size_t kChunk = size_t{256} << 20;
constexpr int64_t kMalloc = -1;

struct Block {
  int64_t size_class;
  Block* next;
};

std::mutex lock;
Block* unused[kClassLast + 1];
char* chunk = nullptr;
size_t chunk_left = 0;
enum class State { kUnknown, kPinned, kPlain } state = State::kUnknown;
// What this thread allocates while it reads the environment or makes a chunk is plain.
thread_local bool busy = false;

bool Pinned() {
  if (state != State::kUnknown) return state == State::kPinned;
  busy = true;
  const bool cuda = deepinfer::GetEnv("BACKEND") == "cuda";
  if (cuda) setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  state = cuda ? State::kPinned : State::kPlain;
  busy = false;
  return cuda;
}

// nullptr without a device: the tests will be skipped.
void* NewChunk(size_t bytes) {
  busy = true;
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  busy = false;
  if (error == cudaSuccess) return data;
  fprintf(stderr, "%zu bytes of pinned memory: %s\n", bytes, cudaGetErrorString(error));
  state = State::kPlain;
  return nullptr;
}

void* Take(int size_class) {
  if (Block* block = unused[size_class]; block != nullptr) {
    unused[size_class] = block->next;
    return block;
  }
  const size_t bytes = size_t{1} << size_class;
  if (bytes > kChunk) return NewChunk(bytes);
  if (bytes > chunk_left) {
    chunk = static_cast<char*>(NewChunk(kChunk));
    if (chunk == nullptr) return nullptr;
    chunk_left = kChunk;
  }
  void* data = chunk;
  chunk += bytes;
  chunk_left -= bytes;
  return data;
}

}  // namespace

void* operator new(size_t bytes) {
  int size_class = kClassFirst;
  while ((size_t{1} << size_class) < bytes + kHeader && size_class < kClassLast) ++size_class;
  Block* block = nullptr;
  if (!busy) {
    const std::lock_guard guard(lock);
    if (Pinned()) block = static_cast<Block*>(Take(size_class));
    if (block != nullptr) block->size_class = size_class;
  }
  if (block == nullptr) {
    block = static_cast<Block*>(malloc(bytes + kHeader));
    if (block == nullptr) abort();
    block->size_class = kMalloc;
  }
  return reinterpret_cast<char*>(block) + kHeader;
}

void operator delete(void* data) noexcept {
  if (data == nullptr) return;
  auto* block = reinterpret_cast<Block*>(static_cast<char*>(data) - kHeader);
  if (block->size_class == kMalloc) return free(block);
  const std::lock_guard guard(lock);
  block->next = unused[block->size_class];
  unused[block->size_class] = block;
}

void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete[](void* data) noexcept { operator delete(data); }
void operator delete(void* data, size_t) noexcept { operator delete(data); }
void operator delete[](void* data, size_t) noexcept { operator delete(data); }
