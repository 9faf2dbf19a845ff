#include "offload/uring/uring_engine.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/address_space.h"
#include "base/check.h"
#include "offload/piece_progress.h"
#include "offload/piece_queue.h"
#include "offload/uring/ring.h"

namespace terrace {
namespace {

constexpr std::uint64_t kWakeTag = std::numeric_limits<std::uint64_t>::max();

class EventDescriptor {
 public:
  EventDescriptor() : value_(::eventfd(0, EFD_CLOEXEC)) {
    if (value_ < 0)
      throw UringRefused({.operation = "eventfd", .path = "io_uring", .error_number = errno});
  }
  ~EventDescriptor() { ::close(value_); }
  EventDescriptor(const EventDescriptor&) = delete;
  EventDescriptor& operator=(const EventDescriptor&) = delete;

  int get() const { return value_; }
  void signal() const {
    const std::uint64_t one = 1;
    while (::write(value_, &one, sizeof(one)) < 0) TERRACE_CHECK_EQ(errno, EINTR);
  }

 private:
  int value_;
};

class UringEngine final : public IoEngine {
 public:
  UringEngine(std::vector<const DirectFile*> files, const InFlight& limit);
  ~UringEngine() override;

  void submit(const Piece& piece) override;
  void register_memory(std::span<std::byte> memory) override;
  EngineFacts facts() const override;

 private:
  struct Registration {
    std::span<std::byte> memory;  // empty: forget all
    bool is_taken = false;        // from the call to its end
    bool wanted = false;
    int error_number = 0;
  };

  // Called on the reactor's thread.
  void run();
  void serve(Ring& ring);
  enum class Then : std::uint8_t { kWait, kGoOn };
  bool take_orders(Ring& ring, Then then);
  void take_pieces(Then then);  // called with mutex_ held
  void start(Ring& ring, std::size_t slot);
  // Returns the part of the rest of the slot's piece that the system is asked for.
  std::span<std::byte> to_ask(std::size_t slot);
  void arm_wake(Ring& ring);
  void reap(Ring& ring);
  bool piece_ended(Ring& ring, std::size_t slot, std::int64_t result);

  const std::vector<const DirectFile*> files_;
  const std::size_t slots_;
  const std::size_t bytes_max_;
  const EventDescriptor wake_;

  mutable std::mutex mutex_;
  std::condition_variable answered_;
  PieceQueue inbox_;               // guarded by mutex_
  bool hungry_ = false;            // guarded by mutex_: the reactor has room for more pieces
  Registration registration_;      // guarded by mutex_
  bool stop_ = false;              // guarded by mutex_
  bool opened_ = false;            // guarded by mutex_
  int open_error_ = 0;             // guarded by mutex_
  const char* refused_call_ = "";  // guarded by mutex_
  bool any_registered_ = false;    // guarded by mutex_
  std::string remark_;             // guarded by mutex_

  // Owned by the reactor's thread.
  std::vector<Piece> taken_;
  std::vector<PieceProgress> ended_;
  std::vector<PieceProgress> progress_;  // by slot
  std::vector<SystemFault> faults_;      // by slot; empty where there are none
  std::vector<std::size_t> free_slots_;
  std::size_t bytes_in_flight_ = 0;
  std::uint64_t wake_count_ = 0;
  bool wake_armed_ = false;

  std::thread reactor_;
};

UringEngine::UringEngine(std::vector<const DirectFile*> files, const InFlight& limit)
    : files_(std::move(files)),
      slots_(static_cast<std::size_t>(limit.pieces_max)),
      bytes_max_(limit.bytes_max),
      inbox_(kQueuedPiecesMax * files_.size()),
      progress_(slots_) {
  taken_.reserve(slots_);
  ended_.reserve(slots_);
  for (std::size_t slot = 0; slot < slots_; ++slot) free_slots_.push_back(slot);
  const bool faulty =
      std::ranges::any_of(files_, [](const DirectFile* file) { return file->faults() != nullptr; });
  if (faulty) faults_.resize(slots_);
  try {
    reactor_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(
        fmt::format("cannot start the io_uring thread for {}: {}", files_[0]->path(), error.what()),
        remedy_for_threads());
  }
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [this] { return opened_; });
  if (open_error_ == 0) return;
  lock.unlock();
  reactor_.join();
  throw UringRefused(
      {.operation = refused_call_, .path = files_[0]->path(), .error_number = open_error_});
}

UringEngine::~UringEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.signal();
  reactor_.join();
}

void UringEngine::submit(const Piece& piece) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    inbox_.push(piece);
    wakes = hungry_;
    hungry_ = false;
  }
  // A reactor whose slots are all in use looks here by itself when one becomes free.
  if (wakes) wake_.signal();
}

void UringEngine::register_memory(std::span<std::byte> memory) {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [this] { return !registration_.is_taken; });
  registration_ = {.memory = memory, .is_taken = true, .wanted = true};
  wake_.signal();
  answered_.wait(lock, [this] { return !registration_.wanted; });
  const int error_number = registration_.error_number;
  registration_ = {};
  any_registered_ = any_registered_ || error_number == 0;
  if (error_number != 0 && remark_.empty()) {
    remark_ =
        fmt::format("memory cannot be registered with io_uring: {}{}", std::strerror(error_number),
                    error_number == ENOMEM || error_number == EPERM
                        ? " (the limit on locked memory, ulimit -l, is too small)"
                        : "");
  }
  answered_.notify_all();
}

EngineFacts UringEngine::facts() const {
  const std::lock_guard lock(mutex_);
  return {.name = "io_uring",
          .registered_buffers = any_registered_ && remark_.empty(),
          .remark = remark_};
}

void UringEngine::run() {
  Ring ring;
  const auto entries = static_cast<unsigned>(slots_ + 1);  // one more for the read of the event
  std::vector<int> descriptors;
  for (const DirectFile* file : files_) descriptors.push_back(file->descriptor());
  descriptors.push_back(wake_.get());
  const int error = ring.open(descriptors, entries, TaskRun::kDeferred);
  {
    const std::lock_guard lock(mutex_);
    opened_ = true;
    open_error_ = error;
    refused_call_ = ring.refused_call();
  }
  answered_.notify_all();
  if (error == 0) serve(ring);
}

void UringEngine::serve(Ring& ring) {
  // The read of the event writes into this object, so it must have ended before the thread does.
  while (take_orders(ring, Then::kWait) || wake_armed_) {
    ring.submit_and_wait();
    reap(ring);
  }
  TERRACE_CHECK_EQ(free_slots_.size(), slots_);
}

// Takes the requests that have come since the last time; returns false when there will be no more.
bool UringEngine::take_orders(Ring& ring, Then then) {
  bool stop = false;
  std::optional<std::span<std::byte>> memory;
  {
    const std::lock_guard lock(mutex_);
    take_pieces(then);
    if (registration_.wanted) memory = registration_.memory;
    stop = stop_;
  }
  if (memory) {
    const int error = memory->empty() ? ring.forget_memory() : ring.register_memory(*memory);
    {
      const std::lock_guard lock(mutex_);
      registration_.wanted = false;
      registration_.error_number = error;
    }
    answered_.notify_all();
  }
  for (const Piece& piece : taken_) {
    const std::size_t slot = free_slots_.back();
    free_slots_.pop_back();
    progress_[slot] = PieceProgress(piece, files_.at(piece.file)->alignment());
    piece.completion->piece_started();
    start(ring, slot);
  }
  taken_.clear();
  if (stop) return false;
  if (!wake_armed_) arm_wake(ring);
  return true;
}

void UringEngine::take_pieces(Then then) {
  while (taken_.size() < free_slots_.size() && !inbox_.empty()) {
    const std::size_t bytes = inbox_.next().memory.size();
    if (bytes_in_flight_ != 0 && bytes_in_flight_ + bytes > bytes_max_) break;
    bytes_in_flight_ += bytes;
    taken_.push_back(inbox_.pop());
  }
  // A reactor that goes on comes here again before it waits, and need not be woken.
  const bool has_room = taken_.size() < free_slots_.size() && bytes_in_flight_ < bytes_max_;
  hungry_ = then == Then::kWait && inbox_.empty() && has_room;
}

void UringEngine::start(Ring& ring, std::size_t slot) {
  const PieceProgress& progress = progress_[slot];
  ring.prepare({.direction = progress.piece().direction,
                .file = progress.piece().file,
                .memory = to_ask(slot),
                .offset = progress.rest_offset()},
               slot);
}

std::span<std::byte> UringEngine::to_ask(std::size_t slot) {
  const PieceProgress& progress = progress_[slot];
  if (faults_.empty()) return progress.rest();
  const bool reads = progress.piece().direction == IoDirection::kRead;
  const SystemCall call = {reads ? SystemCall::Kind::kRead : SystemCall::Kind::kWrite,
                           progress.rest_offset(), progress.rest().size()};
  SystemFaults* faults = files_[progress.piece().file]->faults();
  const SystemFault fault = faults == nullptr ? SystemFault::none(call) : faults->fate_of(call);
  hold_back(fault);
  faults_[slot] = fault;
  return progress.rest().first(fault.asked_bytes);
}

void UringEngine::arm_wake(Ring& ring) {
  wake_armed_ = true;
  ring.prepare({.direction = IoDirection::kRead,
                .file = files_.size(),  // the event, after the data files
                .memory = std::as_writable_bytes(std::span(&wake_count_, 1)),
                .offset = 0},
               kWakeTag);
}

void UringEngine::reap(Ring& ring) {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
  while (ring.take(tag, result)) {
    if (tag == kWakeTag) {
      wake_armed_ = false;
    } else if (piece_ended(ring, tag, result)) {
      ended_.push_back(progress_[tag]);
      free_slots_.push_back(tag);
      bytes_in_flight_ -= progress_[tag].piece().memory.size();
    }
  }
  if (ended_.empty()) return;
  // A completion takes time (checksums), so the following pieces are started first. Otherwise the
  // drive would run dry.
  take_orders(ring, Then::kGoOn);
  ring.submit();
  for (const PieceProgress& ended : ended_) ended.piece().completion->piece_done(ended.result());
  ended_.clear();
}

// Returns false if the rest of the piece has been started.
bool UringEngine::piece_ended(Ring& ring, std::size_t slot, std::int64_t result) {
  if (!faults_.empty()) {
    const bool reads = progress_[slot].piece().direction == IoDirection::kRead;
    result =
        answer_with(faults_[slot], result, reads ? progress_[slot].rest() : std::span<std::byte>());
  }
  if (progress_[slot].advance(result) != PieceProgress::Next::kAgain) return true;
  start(ring, slot);
  return false;
}

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(std::vector<const DirectFile*> files,
                                            const InFlight& in_flight) {
  return std::make_unique<UringEngine>(std::move(files), in_flight);
}

}  // namespace terrace
