#include "tests/runtime/engine/fake_gpu_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"

namespace terrace::test {
namespace {

constexpr std::size_t kPage = 4096;

std::byte* map_shared(int file, std::size_t size_bytes, int access) {
  void* const address = ::mmap(nullptr, size_bytes, access, MAP_SHARED, file, 0);
  if (address == MAP_FAILED) throw OutOfMemory("mmap of fake device memory", "");
  return static_cast<std::byte*>(address);
}

FakePieces& common_pieces() {
  static FakePieces pieces;
  return pieces;
}

}  // namespace

DoubleMapping::DoubleMapping(std::size_t size_bytes)
    : mapped_bytes_(round_up(size_bytes + 1, kPage)) {
  const int file = ::memfd_create("fake-gpu", 0);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(mapped_bytes_)) != 0) {
    throw OutOfMemory("pages of fake device memory", "");
  }
  untouchable_ = {map_shared(file, mapped_bytes_, PROT_NONE), size_bytes};
  real_ = map_shared(file, mapped_bytes_, PROT_READ | PROT_WRITE);
  ::close(file);
}

DoubleMapping::~DoubleMapping() {
  ::munmap(untouchable_.data(), mapped_bytes_);
  ::munmap(real_, mapped_bytes_);
}

void FakePieces::add(const DoubleMapping& mapping) {
  const std::scoped_lock lock(mutex_);
  pieces_[mapping.untouchable().data()] = {mapping.untouchable().size(), mapping.real()};
}

void FakePieces::remove(const DoubleMapping& mapping) {
  const std::scoped_lock lock(mutex_);
  pieces_.erase(mapping.untouchable().data());
}

std::byte* FakePieces::real(const std::byte* address) const {
  const std::scoped_lock lock(mutex_);
  auto piece = pieces_.upper_bound(address);
  if (piece == pieces_.begin()) return nullptr;
  --piece;
  const auto offset = static_cast<std::size_t>(address - piece->first);
  // The address one past the end belongs to the piece too, as an empty view may begin there.
  return offset <= piece->second.size_bytes ? piece->second.real + offset : nullptr;
}

CommonFakeMemory::CommonFakeMemory(std::size_t size_bytes) : mapping_(size_bytes) {
  common_pieces().add(mapping_);
}

CommonFakeMemory::~CommonFakeMemory() { common_pieces().remove(mapping_); }

std::byte* FakeGpuState::real_or_host(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  if (std::byte* const own = pieces_.real(at); own != nullptr) return own;
  if (std::byte* const common = common_pieces().real(at); common != nullptr) return common;
  return const_cast<std::byte*>(at);
}

std::byte* FakeGpuState::real(const void* address) const {
  if (address == nullptr) return nullptr;
  std::byte* const found = real_or_host(address);
  TERRACE_CHECK(found != address);
  return found;
}

void FakeGpuState::issues_lane() {
  const std::scoped_lock lock(mutex_);
  lane_threads_.insert(std::this_thread::get_id());
}

void FakeGpuState::waits() const {
  const std::scoped_lock lock(mutex_);
  TERRACE_CHECK(!lane_threads_.contains(std::this_thread::get_id()));
}

void FakeGpuState::call(std::string_view name) {
  if (calls_left_.load() > 0 && calls_left_.fetch_sub(1) == 1) broken_ = true;
  if (broken_) throw DeviceError(fmt::format("{}: a failure that was planted", name), "");
}

}  // namespace terrace::test
