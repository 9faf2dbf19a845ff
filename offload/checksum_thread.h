#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace terrace {

// A block whose checksum is to be taken.
class ChecksumJob {
 public:
  virtual ~ChecksumJob() = default;
  // Called on the thread, once for each time the job was handed in.
  virtual void take_checksum() noexcept = 0;
};

// A thread that takes checksums of blocks, in addition to the thread that submits writes and the
// thread that keeps the drive busy. Jobs of each direction run in the order they come. Blocks that
// have been read go first, because someone waits for them.
class ChecksumThread {
 public:
  // At most `capacity` jobs of a direction wait at a time. Throws EnvironmentError where the thread
  // does not start.
  explicit ChecksumThread(std::size_t capacity);
  // Ends the thread after everything that was handed in.
  ~ChecksumThread();
  ChecksumThread(const ChecksumThread&) = delete;
  ChecksumThread& operator=(const ChecksumThread&) = delete;

  // Any thread; allocates nothing. A job must live until it has been called.
  void push_read(ChecksumJob& job) noexcept { push(reads_, job); }
  void push_write(ChecksumJob& job) noexcept { push(writes_, job); }

 private:
  // The jobs that wait, in a ring.
  struct Line {
    std::vector<ChecksumJob*> places;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  void push(Line& line, ChecksumJob& job) noexcept;
  ChecksumJob* pop();
  void run();

  std::mutex mutex_;
  std::condition_variable came_;
  Line reads_;         // guarded by mutex_
  Line writes_;        // guarded by mutex_
  bool idle_ = false;  // guarded by mutex_: the thread waits to be notified
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace terrace
