#include "parallel/sockets/shared_window.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

// A message of one byte that carries a descriptor.
struct DescriptorMessage {
  std::byte byte{};
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr head = {};

  DescriptorMessage() {
    head.msg_iov = &data;
    head.msg_iovlen = 1;
    head.msg_control = control.data();
    head.msg_controllen = control.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;
};

[[noreturn]] void fail_on_window(const char* what, std::size_t bytes) {
  const std::string text = fmt::format("cannot {} {} bytes of memory for ranks of this host: {}",
                                       what, bytes, std::strerror(errno));
  if (errno == ENOMEM) throw OutOfMemory(text, "start fewer ranks, or free memory");
  throw EnvironmentError(text, "check the limits of this process (ulimit -n, ulimit -v)");
}

}  // namespace

SharedWindow::SharedWindow(std::size_t bytes)
    : descriptor_(::memfd_create("terrace-window", MFD_CLOEXEC)) {
  if (descriptor_ < 0 || ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    const int error_number = errno;
    end_giving();
    errno = error_number;
    fail_on_window("make", bytes);
  }
  map(bytes);
  std::memset(bytes_.data(), 0, bytes);  // brings the pages to the processor that writes them
}

SharedWindow::~SharedWindow() {
  end_giving();
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

SharedWindow::SharedWindow(SharedWindow&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(std::exchange(other.bytes_, {})) {}

SharedWindow& SharedWindow::operator=(SharedWindow&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void SharedWindow::end_giving() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

void SharedWindow::map(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) {
    const int error_number = errno;
    end_giving();
    errno = error_number;
    fail_on_window("map", bytes);
  }
  bytes_ = {static_cast<std::byte*>(memory), bytes};
}

bool SharedWindow::give(const TcpSocket& to) const {
  DescriptorMessage message;
  cmsghdr* const control = CMSG_FIRSTHDR(&message.head);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &descriptor_, sizeof(int));
  for (;;) {
    if (::sendmsg(to.descriptor(), &message.head, MSG_NOSIGNAL) == 1) return true;
    if (errno != EINTR) return false;
  }
}

SharedWindow SharedWindow::take(const TcpSocket& from, std::size_t bytes, TcpDeadline deadline) {
  if (!from.wait_to_receive(deadline)) return {};
  DescriptorMessage message;
  if (::recvmsg(from.descriptor(), &message.head, MSG_CMSG_CLOEXEC) != 1) return {};
  const cmsghdr* const control = CMSG_FIRSTHDR(&message.head);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return {};
  SharedWindow window;
  std::memcpy(&window.descriptor_, CMSG_DATA(control), sizeof(int));
  window.map(bytes);
  window.end_giving();
  return window;
}

}  // namespace terrace
