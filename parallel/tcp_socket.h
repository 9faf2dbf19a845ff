#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// TCP as far as a rendezvous needs it: IPv4 and IPv6, nothing blocks past a deadline but the
// resolution of names. What the other side does is an outcome; what this process or machine lacks
// (descriptors, permission, memory) is an EnvironmentError that says what.
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
// May block for as long as the system's resolver does.
TcpResolved resolve_tcp(const std::string& host);
TcpAddress at_port(const TcpAddress& address, int port);
// Whether an interface of this machine has it, or it is a loopback address.
bool is_own_address(const TcpAddress& address);

// Owns a descriptor, which does not block. One thread.
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

  // A connection that is made while others wait (wait_for_any, to send), or none where it cannot
  // be. What became of it then is for has_connected() to say.
  static TcpSocket start_connecting(const TcpAddress& address);
  // To somebody else: who connects to an unused port of this machine may be given that port for its
  // own end, and be connected to itself.
  bool has_connected() const;
  // Of a listening socket: the next connection, or none where nobody waits.
  TcpSocket accept() const;

  // Bytes that have come, at most out.size(): 0 where there are none yet; nothing where the other
  // side has closed, or the connection failed.
  std::optional<std::size_t> receive_some(std::span<std::byte> out) const;
  // Whether something has come before the deadline: bytes, or the end.
  bool wait_to_receive(TcpDeadline deadline) const;
  // All of it before the deadline, or false.
  bool receive_all(std::span<std::byte> out, TcpDeadline deadline) const;
  bool send_all(std::span<const std::byte> bytes, TcpDeadline deadline) const;

 private:
  int descriptor_ = -1;
};

// Listens on all addresses of this machine, of both kinds where it has both: all or none. None:
// the port is in use.
std::vector<TcpSocket> listen_on(int port);

struct TcpWait {
  int descriptor = -1;
  bool to_send = false;  // or to receive
  bool is_ready = false;
};

// Sleeps until one of them is ready, or the deadline, or a signal.
void wait_for_any(std::span<TcpWait> waits, TcpDeadline deadline);

}  // namespace terrace
