#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The part of TCP that a rendezvous and the ranks of torchrun need: IPv4 and IPv6. Nothing blocks
// past a deadline, except the resolution of names. Whatever the other side does is an outcome. If
// this process or machine lacks something (descriptors, permission, memory), that is an
// EnvironmentError that says what.
namespace terrace {

using TcpDeadline = std::chrono::steady_clock::time_point;

struct TcpAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

// A host's addresses, or why there are none. The host is a name, or an address with or without
// brackets.
struct TcpResolved {
  std::vector<TcpAddress> addresses;
  std::string problem;  // empty where there are addresses
};
// May block for as long as the system's resolver does.
TcpResolved resolve_tcp(const std::string& host);
TcpAddress at_port(const TcpAddress& address, int port);
// Returns whether an interface of this machine has the address, or it is a loopback address.
bool is_own_address(const TcpAddress& address);
// Returns the addresses of this machine's interfaces that other machines can use: no loopback and
// no link-local addresses.
std::vector<TcpAddress> own_addresses();
// Returns "10.0.0.1 port 29500" or "fd00::1 port 29500".
std::string text_of(const TcpAddress& address);

// Owns a non-blocking descriptor. One thread.
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

  // Starts a connection, which is made while others wait (wait_for_any, to send). Returns no socket
  // where a connection cannot be made. has_connected() tells the outcome.
  static TcpSocket start_connecting(const TcpAddress& address);
  // Returns whether it is connected to someone else. A socket that connects to an unused port of
  // this machine may be given that port for its own end, and so be connected to itself.
  bool has_connected() const;
  // On a listening socket: returns the next connection, or a closed socket where none waits.
  TcpSocket accept() const;
  // Returns the address of the other end.
  TcpAddress peer_address() const;
  // Lets the system close the connection when the other machine has not answered for about a
  // minute, even if nothing is sent.
  void watch_peer() const;

  // Returns the number of bytes that have come, at most out.size(): 0 where there are none yet,
  // nothing where the other side has closed or the connection failed.
  std::optional<std::size_t> receive_some(std::span<std::byte> out) const;
  // Returns whether something has come before the deadline: bytes, or the end.
  bool wait_to_receive(TcpDeadline deadline) const;
  // Transfer all of it before the deadline, or return false.
  bool receive_all(std::span<std::byte> out, TcpDeadline deadline) const;
  bool send_all(std::span<const std::byte> bytes, TcpDeadline deadline) const;

 private:
  int descriptor_ = -1;
};

// Listens on all addresses of this machine, IPv4 and IPv6 if it has both: on all of them or on
// none. Returns nothing if the port is in use.
std::vector<TcpSocket> listen_on(int port);

// Listens in the same way on a port that the system chooses.
struct TcpListening {
  std::vector<TcpSocket> sockets;
  int port = 0;
};
TcpListening listen_on_any_port();

struct TcpWait {
  int descriptor = -1;
  bool to_send = false;  // otherwise to receive
  bool is_ready = false;
};

// Sleeps until one of them is ready, the deadline passes, or a signal comes.
void wait_for_any(std::span<TcpWait> waits, TcpDeadline deadline);

}  // namespace terrace
