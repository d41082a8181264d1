#include "base/io_ring.h"

#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/format.h"

namespace deepinfer {
namespace {

constexpr unsigned kDepthMax = 4096;

// The system calls have no wrappers in the C library.
int Setup(unsigned depth, io_uring_params* params) {
  return static_cast<int>(syscall(__NR_io_uring_setup, depth, params));
}
int Enter(int fd, unsigned submit, unsigned wait) {
  const unsigned flags = wait > 0 ? IORING_ENTER_GETEVENTS : 0;
  return static_cast<int>(syscall(__NR_io_uring_enter, fd, submit, wait, flags, nullptr, 0));
}
int Register(int fd, unsigned what, void* data, unsigned count) {
  return static_cast<int>(syscall(__NR_io_uring_register, fd, what, data, count));
}

// Positions that the kernel moves, and those that it looks at.
uint32_t Seen(const uint32_t* position) { return __atomic_load_n(position, __ATOMIC_ACQUIRE); }
void Publish(uint32_t* position, uint32_t value) {
  __atomic_store_n(position, value, __ATOMIC_RELEASE);
}

Status Failed(const char* call, int error) {
  return Unavailable(Format("{}: {}", call, std::strerror(error)));
}

// Takes what a read call returned: a count of bytes, 0 at the end of the file, or -errno. True when
// the read is to go on.
bool Take(FileRead* read, int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return true;
  if (result <= 0) {
    read->error = result == 0 ? FileRead::kFileEnds : static_cast<int>(-result);
    return false;
  }
  const auto count = static_cast<uint32_t>(std::min<int64_t>(result, read->bytes));
  read->offset += count;
  read->to += count;
  read->bytes -= count;
  return read->bytes > 0;
}

}  // namespace

std::string FileReadError(const FileRead& read) {
  if (read.error == FileRead::kFileEnds) {
    return Format("the file ends {} bytes too early", read.bytes);
  }
  return std::strerror(read.error);
}

void ReadWithPread(std::span<FileRead> reads) {
  for (FileRead& read : reads) {
    read.error = 0;
    while (read.bytes > 0) {
      const ssize_t count = pread(read.fd, read.to, read.bytes, static_cast<off_t>(read.offset));
      if (!Take(&read, count < 0 ? -errno : count)) break;
    }
  }
}

IoRing::Mapping::~Mapping() {
  if (data != nullptr) munmap(data, bytes);
}

IoRing::~IoRing() {
  if (fd_ >= 0) close(fd_);
}

Result<std::unique_ptr<IoRing>> IoRing::Create(unsigned depth) {
  std::unique_ptr<IoRing> ring(new IoRing());
  DI_TRY(ring->Open(std::clamp(depth, 1U, kDepthMax)));
  DI_TRY(ring->CheckReads());
  return ring;
}

Status IoRing::Open(unsigned depth) {
  io_uring_params params = {};
  fd_ = Setup(depth, &params);
  if (fd_ < 0) return Failed("io_uring_setup", errno);
  if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) {
    return Unavailable("io_uring: the kernel is too old");
  }
  depth_ = depth;
  const auto map = [this](size_t bytes, uint64_t what, Mapping* to) -> Status {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                      static_cast<off_t>(what));
    if (data == MAP_FAILED) return Failed("mmap of an io_uring", errno);
    to->data = data;
    to->bytes = bytes;
    return {};
  };
  const size_t order_end = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
  const size_t results_end = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  DI_TRY(map(std::max(order_end, results_end), IORING_OFF_SQ_RING, &queues_));
  DI_TRY(map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES, &entries_));
  auto* base = static_cast<std::byte*>(queues_.data);
  const auto at = [base](uint32_t offset) { return reinterpret_cast<uint32_t*>(base + offset); };
  submissions_ = {at(params.sq_off.head), at(params.sq_off.tail), *at(params.sq_off.ring_mask)};
  completions_ = {at(params.cq_off.head), at(params.cq_off.tail), *at(params.cq_off.ring_mask)};
  order_ = at(params.sq_off.array);
  results_ = base + params.cq_off.cqes;
  short_.reserve(depth_);
  return {};
}

// Plain reads came later than the rings themselves.
Status IoRing::CheckReads() const {
  constexpr unsigned kOps = 256;
  alignas(io_uring_probe)
      std::byte bytes[sizeof(io_uring_probe) + kOps * sizeof(io_uring_probe_op)] = {};
  if (Register(fd_, IORING_REGISTER_PROBE, bytes, kOps) < 0) {
    return Failed("io_uring_register", errno);
  }
  const auto* probe = reinterpret_cast<const io_uring_probe*>(bytes);
  if (probe->ops_len > IORING_OP_READ &&
      (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) != 0) {
    return {};
  }
  return Unavailable("io_uring: the kernel is too old for reads");
}

void IoRing::Push(std::span<const FileRead> reads, uint32_t index) {
  const uint32_t tail = *submissions_.tail;  // only this thread moves it
  const uint32_t place = tail & submissions_.mask;
  auto* entry = static_cast<io_uring_sqe*>(entries_.data) + place;
  const FileRead& read = reads[index];
  *entry = {};
  entry->opcode = IORING_OP_READ;
  entry->fd = read.fd;
  entry->off = read.offset;
  entry->addr = reinterpret_cast<uint64_t>(read.to);
  entry->len = read.bytes;
  entry->user_data = index;
  order_[place] = place;
  Publish(submissions_.tail, tail + 1);
  ++in_flight_;
  ++unsent_;
}

void IoRing::Reap(std::span<FileRead> reads) {
  uint32_t head = *completions_.head;  // only this thread moves it
  const uint32_t tail = Seen(completions_.tail);
  for (; head != tail; ++head) {
    const io_uring_cqe& result =
        static_cast<const io_uring_cqe*>(results_)[head & completions_.mask];
    const auto index = static_cast<uint32_t>(result.user_data);
    --in_flight_;
    if (Take(&reads[index], result.res)) short_.push_back(index);
  }
  Publish(completions_.head, head);
}

// The kernel takes no more entries: what it has is waited for, the rest fails.
void IoRing::Abandon(std::span<FileRead> reads, int error) {
  const uint32_t tail = *submissions_.tail;
  for (uint32_t i = 1; i <= unsent_; ++i) {
    const uint32_t place = (tail - i) & submissions_.mask;
    reads[static_cast<io_uring_sqe*>(entries_.data)[place].user_data].error = error;
  }
  Publish(submissions_.tail, tail - unsent_);
  in_flight_ -= unsent_;
  unsent_ = 0;
  while (in_flight_ > 0) {
    sched_yield();
    Reap(reads);
  }
  for (const uint32_t index : short_) reads[index].error = error;
  short_.clear();
  for (; next_ < reads.size(); ++next_) reads[next_].error = error;
}

void IoRing::Read(std::span<FileRead> reads) {
  DI_CHECK(in_flight_ == 0 && reads.size() <= UINT32_MAX);
  for (FileRead& read : reads) read.error = 0;
  next_ = 0;
  while (next_ < reads.size() || in_flight_ > 0 || !short_.empty()) {
    while (in_flight_ < depth_) {
      if (!short_.empty()) {
        const uint32_t index = short_.back();
        short_.pop_back();
        Push(reads, index);
      } else if (next_ < reads.size()) {
        const auto index = static_cast<uint32_t>(next_++);
        if (reads[index].bytes > 0) Push(reads, index);
      } else {
        break;
      }
    }
    if (in_flight_ == 0) continue;
    const int sent = Enter(fd_, unsent_, 1);
    if (sent >= 0) {
      unsent_ -= std::min(unsent_, static_cast<uint32_t>(sent));
    } else if (errno == EAGAIN || errno == EBUSY) {
      sched_yield();  // short of memory, or completions wait to be taken
    } else if (errno != EINTR) {
      Abandon(reads, errno);
      return;
    }
    Reap(reads);
  }
}

}  // namespace deepinfer
