// Many small reads of files at once: through an io_uring of the kernel where that is allowed, else
// one pread after the other. Every result is checked: a read is whole, or says why it is not.
// One thread at a time; nothing is in flight between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct FileRead {
  static constexpr int kFileEnds = -1;

  // What is to be read; moves on as bytes arrive, so that `bytes` are those still missing.
  int fd = -1;
  uint64_t offset = 0;
  std::byte* to = nullptr;
  uint32_t bytes = 0;
  int error = 0;  // afterwards: 0 (whole), an errno, or kFileEnds: the file has fewer bytes
};

// Why it failed, for messages: "Input/output error", "the file ends before them".
std::string FileReadError(const FileRead& read);

// Blocks until all are whole or failed.
void ReadWithPread(std::span<FileRead> reads);

class IoRing {
 public:
  // At most `depth` reads are in flight, 1 to 4096. Errors: the kernel has no io_uring that reads
  // files, or the container forbids it.
  static Result<std::unique_ptr<IoRing>> Create(unsigned depth);
  ~IoRing();
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  // Blocks until all are whole or failed.
  void Read(std::span<FileRead> reads);

 private:
  IoRing() = default;
  Status Open(unsigned depth);
  Status CheckReads() const;
  void Push(std::span<const FileRead> reads, uint32_t index);
  void Reap(std::span<FileRead> reads);
  void Abandon(std::span<FileRead> reads, int error);

  struct Mapping {
    ~Mapping();
    void* data = nullptr;
    size_t bytes = 0;
  };
  struct Queue {  // positions count up for ever and are masked when used
    uint32_t* head = nullptr;
    uint32_t* tail = nullptr;
    uint32_t mask = 0;
  };
  int fd_ = -1;
  unsigned depth_ = 0;
  Mapping queues_, entries_;
  Queue submissions_, completions_;
  uint32_t* order_ = nullptr;      // entry of each place of the submission queue
  const void* results_ = nullptr;  // of the completion queue
  // Of the call that runs:
  uint32_t in_flight_ = 0;       // in the submission queue or beyond
  uint32_t unsent_ = 0;          // of these, not yet taken by the kernel
  size_t next_ = 0;              // reads from here on were not started
  std::vector<uint32_t> short_;  // reads that returned too few bytes and go on
};

}  // namespace deepinfer
