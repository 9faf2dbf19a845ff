#include "offload/direct_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace terrace {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kAlignmentMax = 64 * kKiB;
constexpr std::size_t kAlignmentUnknown = 0;
constexpr std::size_t kDirectRefused = 1;

bool is_memory_file_system(int descriptor) {
  struct statfs facts = {};
  if (::fstatfs(descriptor, &facts) != 0) return false;
  return facts.f_type == TMPFS_MAGIC || facts.f_type == RAMFS_MAGIC;
}

std::int64_t result_or_errno(ssize_t result) { return result < 0 ? -errno : result; }

}  // namespace

DirectFile::DirectFile(std::string path, SystemFaults* faults)
    : path_(std::move(path)), faults_(faults) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  constexpr mode_t kMode = 0600;
  int error_number = refusal_of(faults_, SystemCall::Kind::kOpen);
  if (error_number == 0) {
    descriptor_ = ::open(path_.c_str(), kFlags, kMode);
    if (descriptor_ < 0) error_number = errno;
  }
  if (error_number != 0) {
    throw ConfigError(
        fmt::format("cannot make the file {}: {}", path_, std::strerror(error_number)),
        "name a directory that this user may write to");
  }
  settle_direct();
}

DirectFile::~DirectFile() { ::close(descriptor_); }

// O_DIRECT is set on the open file, not at open(2): one that refuses it then keeps its descriptor.
void DirectFile::settle_direct() {
  alignment_ = std::max(kPageBytes, file_system_block());
  if (is_memory_file_system(descriptor_)) return give_up_direct("the file system is memory");
  const std::size_t reported = reported_alignment();
  if (reported == kDirectRefused) return give_up_direct("the file system has no direct I/O");
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) {
    return give_up_direct(fmt::format("O_DIRECT is refused: {}", std::strerror(errno)));
  }
  const std::size_t asked = reported == kAlignmentUnknown ? tried_alignment() : reported;
  if (asked == kDirectRefused || asked > kAlignmentMax) {
    ::fcntl(descriptor_, F_SETFL, flags);
    return give_up_direct("no alignment is accepted for direct I/O");
  }
  direct_ = true;
  // Writes that are not whole blocks of the file system are serialised by it.
  alignment_ = std::max(alignment_, asked);
}

void DirectFile::give_up_direct(const std::string& reason) {
  remark_ = fmt::format("through the page cache: {}", reason);
}

std::size_t DirectFile::reported_alignment() const {
#ifdef STATX_DIOALIGN
  struct statx facts = {};
  if (::statx(descriptor_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) != 0) {
    return kAlignmentUnknown;
  }
  if ((facts.stx_mask & STATX_DIOALIGN) == 0) return kAlignmentUnknown;
  if (facts.stx_dio_mem_align == 0 || facts.stx_dio_offset_align == 0) return kDirectRefused;
  return std::bit_ceil<std::size_t>(std::max(facts.stx_dio_mem_align, facts.stx_dio_offset_align));
#else
  return kAlignmentUnknown;
#endif
}

// Writes a unit of each alignment that occurs, until one is taken; leaves the file empty.
std::size_t DirectFile::tried_alignment() const {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> memory(std::aligned_alloc(kAlignmentMax, kAlignmentMax));
  if (memory == nullptr) return kDirectRefused;
  std::memset(memory.get(), 0, kAlignmentMax);
  for (std::size_t unit = kPageBytes; unit <= kAlignmentMax; unit *= 2) {
    const ssize_t written = ::pwrite(descriptor_, memory.get(), unit, 0);
    if (written != static_cast<ssize_t>(unit)) continue;
    return ::ftruncate(descriptor_, 0) == 0 ? unit : kDirectRefused;
  }
  return kDirectRefused;
}

std::size_t DirectFile::file_system_block() const {
  struct statvfs facts = {};
  if (::fstatvfs(descriptor_, &facts) != 0) return kPageBytes;
  const std::size_t block = facts.f_bsize;
  // Network file systems report their transfer size here, which says nothing about alignment.
  return std::has_single_bit(block) && block <= kAlignmentMax ? block : kPageBytes;
}

std::int64_t DirectFile::read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept {
  return transfer_with(
      faults_, {SystemCall::Kind::kRead, offset, memory.size()}, memory, [&](std::size_t bytes) {
        return result_or_errno(
            ::pread(descriptor_, memory.data(), bytes, static_cast<off_t>(offset)));
      });
}

std::int64_t DirectFile::write_at(std::span<const std::byte> memory,
                                  std::uint64_t offset) noexcept {
  return transfer_with(
      faults_, {SystemCall::Kind::kWrite, offset, memory.size()}, {}, [&](std::size_t bytes) {
        return result_or_errno(
            ::pwrite(descriptor_, memory.data(), bytes, static_cast<off_t>(offset)));
      });
}

int DirectFile::preallocate(std::uint64_t size_bytes) {
  if (size_bytes == 0) return 0;
  const auto size = static_cast<off_t>(size_bytes);
  int refusal = 0;
  do {
    refusal = refusal_of(faults_, SystemCall::Kind::kReserve);
    if (refusal == 0 && ::fallocate(descriptor_, 0, 0, size) != 0) refusal = errno;
  } while (refusal == EINTR);
  if (refusal != EOPNOTSUPP && refusal != ENOSYS) return refusal;
  if (::ftruncate(descriptor_, size) != 0) return errno;
  constexpr const char* kNotReserved = "the file system cannot reserve space";
  if (remark_.find(kNotReserved) != remark_.npos) return 0;
  if (!remark_.empty()) remark_ += "; ";
  remark_ += kNotReserved;
  return 0;
}

int DirectFile::clear() { return ::ftruncate(descriptor_, 0) == 0 ? 0 : errno; }

}  // namespace terrace
