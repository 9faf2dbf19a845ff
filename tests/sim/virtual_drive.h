#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/io_engine.h"
#include "offload/memory_file.h"
#include "offload/piece_progress.h"
#include "offload/stripe_files.h"
#include "offload/system_faults.h"
#include "tests/sim/virtual_time.h"

namespace terrace {

struct VirtualDriveOptions {
  std::int64_t transfer_ns = 1000;  // the approximate time of a piece
  FaultPlan faults;                 // can hit a transfer only while the drive is not hurried
};

// A drive with an engine that takes time, ends pieces in any order and answers as SystemFaults
// does. The bytes of a write are read at some moment between its start and its end.
class VirtualDrive final : public IoEngine, public Actor {
 public:
  VirtualDrive(VirtualTime& time, const VirtualDriveOptions& options);
  ~VirtualDrive() override { time_.remove(*this); }
  VirtualDrive(const VirtualDrive&) = delete;
  VirtualDrive& operator=(const VirtualDrive&) = delete;

  void submit(const Piece& piece) override;
  void register_memory(std::span<std::byte> /*memory*/) override {}
  EngineFacts facts() const override {
    return {.name = "virtual", .registered_buffers = false, .remark = ""};
  }

  std::optional<std::int64_t> due_ns() override;
  void act() override;

  // Sets whether pieces end at once and without faults, for waits outside of virtual time.
  void hurry(bool hurried) { hurried_ = hurried; }
  // Ends all transfers in flight, one way or another.
  void finish();
  std::size_t in_flight() const { return in_flight_.size(); }
  void resize(std::uint64_t size_bytes) { file_.resize(size_bytes); }

 private:
  struct Transfer {
    PieceProgress progress;
    SystemFault fault;
    bool is_carried = false;  // the drive is done with the memory
    std::int64_t answer = 0;
    std::int64_t due_ns = 0;
  };

  void begin(Transfer& transfer);
  void carry(Transfer& transfer);
  bool advance(Transfer& transfer);

  VirtualTime& time_;
  const VirtualDriveOptions options_;
  SeededFaults faults_;
  MemoryFile file_;
  std::vector<Transfer> in_flight_;
  bool hurried_ = false;
};

using VirtualDrives = std::vector<std::unique_ptr<VirtualDrive>>;

// Makes a stripe on each drive. Borrows the drives.
std::unique_ptr<StripeFiles> make_virtual_stripes(const VirtualDrives& drives);

}  // namespace terrace
