#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// TCP as far as a rendezvous needs it: IPv4 and IPv6, nothing blocks past a deadline.
namespace terrace {

using TcpDeadline = std::chrono::steady_clock::time_point;

struct TcpAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

// A host's addresses, or why there are none. A name, or an address with or without
// brackets.
struct TcpResolved {
  std::vector<TcpAddress> addresses;
  std::string problem;  // empty where there are addresses
};
TcpResolved resolve_tcp(const std::string& host);
TcpAddress at_port(const TcpAddress& address, int port);
// Whether it is an address of this machine.
bool is_own_address(const TcpAddress& address);

// Owns a descriptor, which does not block. One thread. Nothing throws: what is not there is an
// outcome here, which the caller judges.
class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(int descriptor) : descriptor_(descriptor) {}
  ~TcpSocket();
  TcpSocket(TcpSocket&& other) noexcept;
  TcpSocket& operator=(TcpSocket&& other) noexcept;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close();

  // A connection, or none where nobody answers before the deadline.
  static TcpSocket connect(const TcpAddress& address, TcpDeadline deadline);
  // Of a listening socket: the next connection, or none where nobody waits.
  TcpSocket accept() const;

  // Bytes that have come, at most out.size(): 0 where there are none yet; nothing where the other
  // side has closed, or the connection failed.
  std::optional<std::size_t> receive_some(std::span<std::byte> out) const;
  // All of it before the deadline, or false.
  bool receive_all(std::span<std::byte> out, TcpDeadline deadline) const;
  bool send_all(std::span<const std::byte> bytes, TcpDeadline deadline) const;

 private:
  int descriptor_ = -1;
};

// Listens on all addresses of this machine, of both kinds where it has both: all or none. None:
// the port is in use.
std::vector<TcpSocket> listen_on(int port);

// Sleeps until one of the sockets has something to read, or the deadline.
void wait_for_any(std::span<const int> descriptors, TcpDeadline deadline);

}  // namespace terrace
