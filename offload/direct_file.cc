#include "offload/direct_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
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
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/not_made.h"

namespace terrace {
namespace {

constexpr std::size_t kSpacingMax = 64 * kKiB;

bool is_memory_file_system(int descriptor) {
  struct statfs facts = {};
  if (::fstatfs(descriptor, &facts) != 0) return false;
  return facts.f_type == TMPFS_MAGIC || facts.f_type == RAMFS_MAGIC;
}

// Returns the size that transfers of direct I/O on the file must be multiples of, in memory and in
// the file. 0 means no direct I/O; nothing means that the system does not say.
std::optional<std::size_t> reported_alignment([[maybe_unused]] int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx facts = {};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) != 0) return std::nullopt;
  if ((facts.stx_mask & STATX_DIOALIGN) == 0) return std::nullopt;
  if (facts.stx_dio_mem_align == 0 || facts.stx_dio_offset_align == 0) return 0;
  return std::max(facts.stx_dio_mem_align, facts.stx_dio_offset_align);
#else
  return std::nullopt;
#endif
}

// Asks a copy-on-write file system (btrfs) to write this file, which is empty, in place. Otherwise
// writes would not go to the space that was reserved for the file, and a drive could run full in
// the middle of a run. Other file systems refuse the request, and do not need it.
void ask_to_write_in_place(int descriptor) {
  int flags = 0;
  if (::ioctl(descriptor, FS_IOC_GETFLAGS, &flags) != 0) return;
  flags |= FS_NOCOW_FL;
  ::ioctl(descriptor, FS_IOC_SETFLAGS, &flags);
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
    throw_not_made({.what = "the file",
                    .path = path_,
                    .remedy = "name a directory that this user may write to"},
                   error_number);
  }
  ask_to_write_in_place(descriptor_);
  settle_direct();
}

DirectFile::~DirectFile() { ::close(descriptor_); }

// O_DIRECT is set on the open file, not at open(2), so that a file that refuses it keeps its
// descriptor.
void DirectFile::settle_direct() {
  if (is_memory_file_system(descriptor_)) return give_up_direct("the file system is in memory");
  const std::optional<std::size_t> reported = reported_alignment(descriptor_);
  if (reported == 0U) return give_up_direct("the file system has no direct I/O");
  if (kTransferAlignment % reported.value_or(1) != 0) {
    return give_up_direct(fmt::format(
        "direct I/O on the file system needs multiples of {}, but state is stored in multiples of "
        "{}",
        format_size(*reported), format_size(kTransferAlignment)));
  }
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) {
    return give_up_direct(fmt::format("O_DIRECT is refused: {}", std::strerror(errno)));
  }
  if (const int refused = try_direct(); refused != 0) {
    ::fcntl(descriptor_, F_SETFL, flags);
    return give_up_direct(fmt::format("direct I/O of {} is refused: {}",
                                      format_size(kTransferAlignment), std::strerror(refused)));
  }
  direct_ = true;
  spacing_ = std::max(kTransferAlignment, file_system_block());
}

void DirectFile::give_up_direct(const std::string& reason) {
  remark_ = fmt::format("uses the page cache: {}", reason);
}

// Writes and reads the smallest possible transfer, because a file system may accept O_DIRECT and
// then refuse to transfer. Leaves the file empty. Returns 0 or an errno.
int DirectFile::try_direct() const {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> memory(
      std::aligned_alloc(kTransferAlignment, kTransferAlignment));
  if (memory == nullptr) return ENOMEM;
  std::memset(memory.get(), 0, kTransferAlignment);
  const ssize_t written = ::pwrite(descriptor_, memory.get(), kTransferAlignment, 0);
  if (written < 0) return errno;
  const ssize_t read = ::pread(descriptor_, memory.get(), kTransferAlignment, 0);
  if (read < 0) return errno;
  constexpr auto kWhole = static_cast<ssize_t>(kTransferAlignment);
  if (written != kWhole || read != kWhole) return EIO;
  return ::ftruncate(descriptor_, 0) == 0 ? 0 : errno;
}

std::size_t DirectFile::file_system_block() const {
  struct statvfs facts = {};
  if (::fstatvfs(descriptor_, &facts) != 0) return kTransferAlignment;
  const std::size_t block = facts.f_bsize;
  // Network file systems report their transfer size here, which says nothing about blocks.
  return std::has_single_bit(block) && block <= kSpacingMax ? block : kTransferAlignment;
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
  // For a file of our own, only a sandbox says that this is not permitted.
  const bool is_not_there = refusal == EOPNOTSUPP || refusal == ENOSYS || refusal == EPERM;
  if (!is_not_there) return refusal;
  if (::ftruncate(descriptor_, size) != 0) return errno;
  constexpr const char* kNotReserved = "the file system cannot reserve space";
  if (remark_.find(kNotReserved) != remark_.npos) return 0;
  if (!remark_.empty()) remark_ += "; ";
  remark_ += kNotReserved;
  return 0;
}

int DirectFile::clear() { return ::ftruncate(descriptor_, 0) == 0 ? 0 : errno; }

}  // namespace terrace
