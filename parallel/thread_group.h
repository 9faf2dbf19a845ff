#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "parallel/communicator.h"

// The state that the ranks of a thread communicator share: how far each has come, which call it
// makes, and how they wait for each other. An internal part of thread_communicator.h.
namespace terrace {

class ThreadGroup;

// The state that all groups made together share: whether they were aborted, and whom to wake then.
class ThreadWorld {
 public:
  explicit ThreadWorld(const CommunicatorOptions& options) : options_(options) {}

  void enroll(const std::shared_ptr<ThreadGroup>& group);
  // The first reason is kept. Any thread.
  void abort(const std::string& reason);
  bool is_aborted() const { return aborted_.load(); }
  std::string reason() const;
  const CommunicatorOptions& options() const { return options_; }

 private:
  const CommunicatorOptions options_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::string reason_;                              // guarded by mutex_
  std::vector<std::weak_ptr<ThreadGroup>> groups_;  // guarded by mutex_
};

// One rank of a group, on cache lines of its own.
struct alignas(128) ThreadMember {
  std::atomic<std::uint64_t> arrived{0};  // points of calls that the rank has reached
  std::atomic<bool> working{false};       // whether it reads and writes buffers of others
  std::atomic<bool> left{false};
  CollectiveCall call;                          // the rank's call, written before it arrives
  std::chrono::steady_clock::time_point begun;  // when it began its last collective; so too
  int color = 0;
  int key = 0;
};

// Messages from one rank to another. The sender writes and then posts; the receiver takes.
struct alignas(64) ThreadMail {
  std::atomic<std::uint64_t> posted{0};
  std::atomic<std::uint64_t> taken{0};
  CollectiveCall call;
};

class ThreadGroup {
 public:
  enum class Outcome : std::uint8_t { kReached, kTimedOut, kAborted, kLeft };

  ThreadGroup(std::shared_ptr<ThreadWorld> world, std::string name, int size);

  const std::shared_ptr<ThreadWorld>& world() const { return world_; }
  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(members_.size()); }
  ThreadMember& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  ThreadMail& mail(int from, int to);

  // Blocks until `reached` holds, `lost` says that it never will, the world is aborted, or the
  // deadline passes. Both functions depend only on atomics of this group, and wake_all() is called
  // after every change of those.
  Outcome wait(FunctionRef<bool()> reached, FunctionRef<bool()> lost,
               std::chrono::steady_clock::time_point deadline);
  void wake_all();
  // Blocks until no rank touches the buffers of others. Called by a rank that has seen the abort
  // and leaves; after that no rank begins to touch them.
  void wait_until_nobody_works();

  // Groups made by a split. The first rank of each group stores it at the index of that rank.
  std::vector<std::shared_ptr<ThreadGroup>> made;

 private:
  const std::shared_ptr<ThreadWorld> world_;
  const std::string name_;
  std::vector<ThreadMember> members_;
  std::vector<ThreadMail> mails_;
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A scope in which a rank touches the buffers of others. Throws nothing; ask is_allowed() first.
class ThreadWork {
 public:
  ThreadWork(ThreadGroup& group, int rank);
  ~ThreadWork();
  ThreadWork(const ThreadWork&) = delete;
  ThreadWork& operator=(const ThreadWork&) = delete;

  // Returns false if the world was aborted: other ranks may be gone, with their buffers.
  bool is_allowed() const { return allowed_; }

 private:
  ThreadGroup& group_;
  ThreadMember& member_;
  const bool allowed_;
};

}  // namespace terrace
