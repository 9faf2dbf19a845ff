#pragma once

#include <cstddef>
#include <span>

#include "parallel/tcp_socket.h"

namespace terrace {

// Memory that processes of one host share. It has no name: the process that makes it passes it to
// the others over a Unix socket, and it goes when no process has it mapped any more.
class SharedWindow {
 public:
  SharedWindow() = default;  // of no memory
  // Makes the memory: zeroed pages. Throws OutOfMemory or EnvironmentError.
  explicit SharedWindow(std::size_t bytes);
  ~SharedWindow();
  SharedWindow(SharedWindow&& other) noexcept;
  SharedWindow& operator=(SharedWindow&& other) noexcept;

  std::span<std::byte> bytes() const { return bytes_; }

  // Gives the memory to the process at the other end of a Unix socket. Returns false if that has
  // hung up.
  bool give(const TcpSocket& to) const;
  // Takes the memory of the process at the other end, which has made it with as many bytes. Returns
  // a window of no memory if none comes before the deadline.
  static SharedWindow take(const TcpSocket& from, std::size_t bytes, TcpDeadline deadline);
  // Closes the descriptor with which the memory can be given to others. The memory stays.
  void end_giving();

 private:
  void map(std::size_t bytes);

  int descriptor_ = -1;
  std::span<std::byte> bytes_;
};

}  // namespace terrace
