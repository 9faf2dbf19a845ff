#include "parallel/mpi/peer_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "base/bytes.h"

namespace terrace {

int read_memory_of(pid_t process, const std::byte* address, std::span<std::byte> to) {
  // One call carries at most 2 GiB.
  constexpr std::size_t kCallBytesMax = kGiB;
  while (!to.empty()) {
    const std::size_t bytes = std::min(to.size(), kCallBytesMax);
    const iovec local = {.iov_base = to.data(), .iov_len = bytes};
    const iovec remote = {.iov_base = const_cast<std::byte*>(address), .iov_len = bytes};
    const ssize_t carried = ::process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (carried < 0) return errno;
    if (carried == 0) return EFAULT;
    address += carried;
    to = to.subspan(static_cast<std::size_t>(carried));
  }
  return 0;
}

PeerMark mark_of(const std::uint64_t& value) {
  return {.process = ::getpid(), .value = value, .address = &value};
}

std::uint64_t random_mark_value() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

bool can_read(const PeerMark& mark) {
  std::uint64_t found = 0;
  const int error_number =
      read_memory_of(mark.process, reinterpret_cast<const std::byte*>(mark.address),
                     std::as_writable_bytes(std::span(&found, 1)));
  return error_number == 0 && found == mark.value;
}

}  // namespace terrace
