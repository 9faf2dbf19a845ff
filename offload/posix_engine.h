#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/io_engine.h"
#include "offload/piece_progress.h"
#include "offload/piece_queue.h"
#include "offload/raw_file.h"

namespace terrace {

// Threads that make blocking transfers on the files of a device. Used where io_uring is forbidden,
// and by the fakes.
class PosixEngine final : public IoEngine {
 public:
  // `files` outlive the engine. Each piece in flight takes a thread, at most kMaxThreads. Throws
  // EnvironmentError where a thread does not start.
  PosixEngine(std::vector<RawFile*> files, const InFlight& limit, std::string name);
  ~PosixEngine() override;

  void submit(const Piece& piece) override;
  void register_memory(std::span<std::byte> memory) override;
  EngineFacts facts() const override;

 private:
  static constexpr int kMaxThreads = 8;

  void stop();
  void run();
  bool may_start() const;  // called with mutex_ held
  void carry(const Piece& piece);

  const std::vector<RawFile*> files_;
  const std::size_t bytes_max_;
  const std::string name_;

  std::mutex mutex_;
  std::condition_variable work_came_;
  PieceQueue queue_;                 // guarded by mutex_
  std::size_t bytes_in_flight_ = 0;  // guarded by mutex_
  bool stop_ = false;                // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace terrace
