#include "runtime/session/gpu_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

#include "base/error.h"
#include "runtime/session/session_error.h"

namespace terrace {

GpuMemory::~GpuMemory() { give_staging_back(); }

void GpuMemory::check(const std::string& what, const GpuPlace& place,
                      std::span<const std::byte> bytes) {
  if (driver_ == nullptr) {
    try {
      driver_ = std::make_shared<const CudaDriver>();
    } catch (const EnvironmentError& error) {
      throw EnvironmentError(
          fmt::format("{} was given as memory of GPU {}; {}", what, place.device, error.what()),
          "");
    }
  }
  const auto known = gpus_.find(place.device);
  std::unique_ptr<DriverCopies> made;
  if (known == gpus_.end()) made = std::make_unique<DriverCopies>(driver_, place.device);
  const DriverCopies& gpu = made != nullptr ? *made : *known->second;
  const std::string refusal = gpu.refusal_of(bytes, what);
  if (!refusal.empty()) {
    throw SessionError(
        SessionProblem::kArgument,
        fmt::format("{} was given as memory of GPU {}, but {}", what, place.device, refusal),
        "set device_type, device_id and data to describe the memory");
  }
  if (made != nullptr) gpus_[place.device] = std::move(made);
}

// Keeps staging out of forked processes: with a copy, the pages that GPUs know would become the
// child's.
void GpuMemory::take_staging() {
  if (!needs_staging_) return;
  HostMemory staging(staging_bytes(), HostMemoryOptions());
  madvise(staging.bytes().data(), staging.bytes().size(), MADV_DONTFORK);
  gpus_.begin()->second->lock(staging.bytes());
  staging_ = std::move(staging);
}

void GpuMemory::give_staging_back() noexcept {
  if (!staging_) return;
  settle(kGradientPiece);
  settle(kParameterPiece);
  gpus_.begin()->second->unlock(staging_->bytes());
  staging_.reset();
}

void GpuMemory::order_after(const GpuPlace& place, std::string_view name) {
  gpus_.at(place.device)->order_after(place.stream, name);
}

std::span<std::byte> GpuMemory::memory_of(std::size_t number) {
  return staging_->bytes().subspan(number * kPieceBytes, kPieceBytes);
}

std::span<std::byte> GpuMemory::piece(std::size_t number) {
  wait(number);
  return memory_of(number);
}

void GpuMemory::start(std::size_t number, DriverCopies& gpu, std::string_view name) {
  copies_.at(number) = {.gpu = &gpu, .name = std::string(name)};
}

void GpuMemory::start_read(std::size_t number, std::size_t offset, const GpuPlace& place,
                           const DeviceBytes& from) {
  DriverCopies& gpu = *gpus_.at(place.device);
  std::byte* const host = memory_of(number).data() + offset;
  if (copies_.at(number).gpu != &gpu) wait(number);  // another GPU's copy
  if (number < kParameterPiece) {
    gpu.start_to_host(host, from, number, place.stream);
  } else {
    gpu.start_to_host(host, from, number);
  }
  start(number, gpu, from.name);
}

void GpuMemory::start_write(std::size_t number, const GpuPlace& place, const DeviceBytes& to) {
  DriverCopies& gpu = *gpus_.at(place.device);
  gpu.start_to_device(to, memory_of(number).data(), number);
  start(number, gpu, to.name);
}

void GpuMemory::wait(std::size_t number) {
  Copy& copy = copies_.at(number);
  if (copy.gpu == nullptr) return;
  copy.gpu->wait(number, copy.name);
  copy.gpu = nullptr;
}

void GpuMemory::settle(std::size_t number) noexcept {
  for (const std::size_t piece : {number, number + 1}) {
    try {
      wait(piece);
    } catch (const std::exception&) {
      copies_[piece].gpu = nullptr;  // a GPU that fails copies nothing more
    }
  }
}

}  // namespace terrace
