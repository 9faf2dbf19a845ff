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

// The place of a caller's memory.
struct GpuPlace {
  int device = -1;         // of a GPU; less than 0: memory of the host
  void* stream = nullptr;  // of the caller: the memory's other uses are in its order

  bool is_gpu() const { return device >= 0; }
  bool operator==(const GpuPlace&) const = default;
};

// Memory of the caller's GPUs, and the page-locked staging through which a session reads and writes
// it: four pieces, two for gradients and two for parameters. One thread at a time uses the two
// gradient pieces, and one thread at a time the two parameter pieces; these may be different
// threads. The driver is not loaded until a tensor is on a GPU. Throws DeviceError, which names the
// tensor, where the driver fails.
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
  // Notes that copies will be asked for, so that staging is needed.
  void need_staging() { needs_staging_ = true; }
  // Returns the bytes of host memory that staging takes.
  std::size_t staging_bytes() const { return needs_staging_ ? kPieces * kPieceBytes : 0; }
  // Takes the memory of staging, if it is needed. Throws OutOfMemory.
  void take_staging();
  void give_staging_back() noexcept;

  // Makes the copies of parameters that start from now on wait for the work that the caller's
  // stream has now.
  void order_after(const GpuPlace& place, std::string_view name);

  // Returns a piece of staging, once the last copy from or to it is complete.
  std::span<std::byte> piece(std::size_t number);
  // Starts to fill a piece from `offset` on, after the content that it has already. A gradient is
  // copied on its own stream.
  void start_read(std::size_t number, std::size_t offset, const GpuPlace& place,
                  const DeviceBytes& from);
  void start_write(std::size_t number, const GpuPlace& place, const DeviceBytes& to);
  // Waits for the last copy from or to a piece. After an error the copy counts as under way until
  // settle().
  void wait(std::size_t number);
  // Waits for the copies of a piece and of the next. The copies of a GPU that fails count as ended.
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

// A scope at whose end no copy is under way from or to a piece and the next, also if an exception
// ends it. So when a call fails and returns, the memory is the caller's again and staging is free.
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
