#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/data/document_ids.h"
#include "runtime/data/text_blocks.h"

namespace terrace {

// Adds a block's ids. Called by several threads at once.
using EncodeBlock = std::function<void(const TextBlock& block, DocumentIds& documents)>;

// Threads that turn blocks of text into ids. The blocks come out in the order in which they went
// in. put() and take() are for one thread.
class BlockEncoder {
 public:
  struct Encoded {
    TextBlock block;  // its text is gone
    std::size_t text_bytes = 0;
    DocumentIds documents;
  };

  BlockEncoder(EncodeBlock encode, int threads);
  ~BlockEncoder();
  BlockEncoder(const BlockEncoder&) = delete;
  BlockEncoder& operator=(const BlockEncoder&) = delete;

  // Returns whether there are enough blocks inside to keep the threads busy.
  bool is_full() const { return jobs_.size() >= jobs_max_; }
  bool is_empty() const { return jobs_.empty(); }
  void put(TextBlock block);
  // Returns the oldest block, once it is done. Throws what `encode` has thrown for it.
  Encoded take();

 private:
  struct Job {
    Encoded result;
    std::exception_ptr failure;
    bool is_done = false;  // guarded by mutex_
  };

  void work();

  const EncodeBlock encode_;
  const std::size_t jobs_max_;
  std::deque<std::shared_ptr<Job>> jobs_;  // used by the thread that puts and takes

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::shared_ptr<Job>> waiting_;
  bool ends_ = false;

  std::vector<std::jthread> threads_;
};

}  // namespace terrace
