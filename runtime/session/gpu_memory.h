#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "memory/cuda/driver_copies.h"
#include "memory/host/host_memory.h"

namespace terrace {

// Where a caller's memory is.
struct GpuPlace {
  int device = -1;         // of a GPU; less than 0: memory of the host
  void* stream = nullptr;  // of the caller's, that the memory's other uses are in order with

  bool is_gpu() const { return device >= 0; }
  bool operator==(const GpuPlace&) const = default;
};

// Memory of the caller's GPUs, and the page-locked staging through which a session reads and writes
// it: four pieces, of which gradients have two and parameters two. One thread at a time uses the
// two gradient pieces, and one thread at a time the two parameter pieces; these may be different
// threads. Nothing is loaded until a tensor is a GPU's. Throws DeviceError, naming the tensor,
// where the driver fails.
class GpuMemory {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
  static constexpr std::size_t kPieces = 4;
  static constexpr std::size_t kGradientPiece = 0;   // and the next
  static constexpr std::size_t kParameterPiece = 2;  // and the next
  static_assert(kPieces <= DriverCopies::kSlots);

  GpuMemory() = default;
  // Waits for the copies that are under way.
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  // Checks that the bytes are memory of the place's GPU; loads the driver at the first call. `what`
  // begins the error. Throws SessionError (kArgument), EnvironmentError.
  void check(const std::string& what, const GpuPlace& place, std::span<const std::byte> bytes);
  // Copies will be asked for: staging is needed.
  void need_staging() { needs_staging_ = true; }
  // Returns the bytes of host memory that staging takes.
  std::size_t staging_bytes() const { return needs_staging_ ? kPieces * kPieceBytes : 0; }
  // Throws OutOfMemory.
  void take_staging();
  void give_staging_back() noexcept;

  // The copies of parameters that start from now on wait for what the caller's stream has.
  void order_after(const GpuPlace& place, std::string_view name);

  // A piece of staging, when what was copied last from or to it is complete.
  std::span<std::byte> piece(std::size_t number);
  // Starts to fill a piece, behind what it has already at `offset`; a gradient's on its stream.
  void start_read(std::size_t number, std::size_t offset, const GpuPlace& place,
                  const DeviceBytes& from);
  void start_write(std::size_t number, const GpuPlace& place, const DeviceBytes& to);
  // Waits for what was copied last from or to a piece. After an error the copy counts as under way,
  // until settle().
  void wait(std::size_t number);
  // Waits for the copies of a piece and of the next; those of a GPU that fails count as ended.
  void settle(std::size_t number) noexcept;

 private:
  struct Copy {
    DriverCopies* gpu = nullptr;  // null: none is under way
    std::string name;
  };

  std::span<std::byte> memory_of(std::size_t number);
  void start(std::size_t number, DriverCopies& gpu, std::string_view name);

  std::shared_ptr<const CudaDriver> driver_;
  std::map<int, std::unique_ptr<DriverCopies>> gpus_;
  bool needs_staging_ = false;
  std::optional<HostMemory> staging_;
  std::array<Copy, kPieces> copies_;
};

// Ends with no copy under way from or to a piece and the next, also where an exception ends the
// scope: so memory is the caller's again when a call that failed returns, and staging is free.
class SettledCopies {
 public:
  SettledCopies(GpuMemory& gpus, std::size_t piece) : gpus_(gpus), piece_(piece) {}
  ~SettledCopies() { gpus_.settle(piece_); }
  SettledCopies(const SettledCopies&) = delete;
  SettledCopies& operator=(const SettledCopies&) = delete;

 private:
  GpuMemory& gpus_;
  const std::size_t piece_;
};

}  // namespace terrace
