#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>

#include "base/bytes.h"
#include "offload/block_store.h"

// Helpers for tests of block stores: aligned memory, a completion to wait for, a directory to work
// in.
namespace terrace {

// Memory with the size and alignment that a store asks for.
class AlignedMemory {
 public:
  AlignedMemory(std::size_t size, std::size_t alignment)
      : size_(round_up(size, alignment)),
        bytes_(static_cast<std::byte*>(std::aligned_alloc(alignment, size_))) {}

  std::span<std::byte> span() { return {bytes_.get(), size_}; }

  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t at = 0; at < size_; at += sizeof(std::uint64_t)) {
      const std::uint64_t value = random();
      std::memcpy(bytes_.get() + at, &value, sizeof(value));
    }
  }
  void clear() { std::memset(bytes_.get(), 0, size_); }
  friend bool operator==(const AlignedMemory& a, const AlignedMemory& b) {
    return a.size_ == b.size_ && std::memcmp(a.bytes_.get(), b.bytes_.get(), a.size_) == 0;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::size_t size_;
  std::unique_ptr<std::byte, Free> bytes_;
};

// Waits for one request.
class Waiter final : public IoCompletion {
 public:
  void done(const IoOutcome& outcome) noexcept override {
    outcome_ = outcome;
    calls_.fetch_add(1);
    calls_.notify_all();
  }
  const IoOutcome& wait() {
    calls_.wait(0);
    return outcome_;
  }
  int calls() const { return calls_.load(); }

 private:
  IoOutcome outcome_;
  std::atomic<int> calls_ = 0;
};

// A directory that exists for one test.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace_store_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  // Makes a directory in it and returns the path.
  std::string make(const std::string& name) const {
    std::filesystem::create_directory(path_ / name);
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

// Runs one request, sets its completion, and waits for its end.
inline IoOutcome run_request(BlockStore& store, IoRequest request) {
  Waiter waiter;
  request.completion = &waiter;
  store.submit(request);
  store.drain();  // wait() alone may return while done() still runs
  return waiter.wait();
}

inline IoOutcome write_bytes(BlockStore& store, ExtentId extent, std::size_t offset,
                             std::span<std::byte> bytes) {
  return run_request(store, {.direction = IoRequest::Direction::kWrite,
                             .extent = extent,
                             .offset = offset,
                             .memory = bytes});
}

inline IoOutcome read_bytes(BlockStore& store, ExtentId extent, std::size_t offset,
                            std::span<std::byte> bytes) {
  return run_request(store, {.direction = IoRequest::Direction::kRead,
                             .extent = extent,
                             .offset = offset,
                             .memory = bytes});
}

}  // namespace terrace
