#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "bench/io_load.h"
#include "memory/host/host_memory.h"
#include "offload/nvme_store.h"

namespace terrace {

// The store as a training step uses it: whole chunks of state, several in flight at a time, from
// and to memory that is registered.
class StoreLoad {
 public:
  struct Options {
    NvmeStoreOptions store;  // is told what it will hold
    std::uint64_t total_bytes = 0;
    std::size_t extent_bytes = 0;
    int requests = 4;  // in flight, or as many as the store takes without blocking
  };

  // Makes the store and writes every extent once. Throws as the store does.
  StoreLoad(const Options& options, Log& log);
  ~StoreLoad();
  StoreLoad(const StoreLoad&) = delete;
  StoreLoad& operator=(const StoreLoad&) = delete;

  struct Run {
    IoMix mix = IoMix::kRead;
    double seconds = 0;
    int requests = 0;  // in flight, at most the options'; 0: all of them
    std::stop_token stopped = {};
  };
  // Starts requests for `run.seconds`, or until a stop is requested, and waits for them. A mixed
  // run reads one half of the extents and writes the other, in turn. Throws the error that failed a
  // request.
  IoRate run(const Run& run);

  const BlockStore& store() const { return *store_; }
  // Returns how many requests are in flight at most.
  int requests() const { return static_cast<int>(slots_.size()); }

 private:
  // One request in flight, with a part of the memory of its own. When it ends, the next one starts
  // on the store's thread.
  struct Slot final : IoCompletion {
    void done(const IoOutcome& outcome) noexcept override { load->ended(*this, outcome); }

    StoreLoad* load = nullptr;
    std::span<std::byte> memory;
    std::int64_t start_ns = 0;  // of the request in flight
  };

  std::size_t slot_count() const;
  void add_latencies(IoRate& rate);
  void start_all(const Run& run, std::int64_t until_ns, std::size_t requests_min);
  bool take_next(IoRequest& request);
  void ended(Slot& slot, const IoOutcome& outcome) noexcept;

  const Options options_;
  HostMemory memory_;
  std::unique_ptr<BlockStore> store_;
  std::vector<ExtentId> extents_;
  std::vector<Slot> slots_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable all_ended_;
  Run run_;
  std::int64_t until_ns_ = 0;
  std::size_t requests_min_ = 0;  // started even after that
  std::size_t started_ = 0;
  std::size_t ended_ = 0;
  IoOutcome failure_;                // the first
  std::vector<double> latencies_s_;  // of the requests of a run that have ended
};

}  // namespace terrace
