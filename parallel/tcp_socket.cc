#include "parallel/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace terrace {
namespace {

constexpr int kBacklog = 1024;

int milliseconds_until(TcpDeadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

// Whether the descriptor is ready before the deadline.
bool wait_for(int descriptor, short events, TcpDeadline deadline) {
  for (;;) {
    pollfd waited = {descriptor, events, 0};
    const int ready = ::poll(&waited, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

TcpSocket make_socket(int family) {
  TcpSocket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (socket.is_open()) {
    const int on = 1;  // small messages that wait for each other
    ::setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return socket;
}

const sockaddr* as_sockaddr(const TcpAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

void set_port(TcpAddress& address, int port) {
  const std::uint16_t number = htons(static_cast<std::uint16_t>(port));
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = number;
  }
}

// 0, or an errno.
int listen_at(int family, int port, TcpSocket& socket) {
  socket = make_socket(family);
  if (!socket.is_open()) return errno;
  const int on = 1;
  // Connections of an earlier attempt that are still winding down do not keep the port.
  ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  TcpAddress any;
  any.storage.ss_family = static_cast<sa_family_t>(family);
  any.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (family == AF_INET6) {
    ::setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  }
  set_port(any, port);
  if (::bind(socket.descriptor(), as_sockaddr(any), any.size) != 0) return errno;
  return ::listen(socket.descriptor(), kBacklog) == 0 ? 0 : errno;
}

}  // namespace

TcpResolved resolve_tcp(const std::string& host) {
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = has_brackets ? host.substr(1, host.size() - 2) : host;
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &first);
  if (error != 0) return {{}, ::gai_strerror(error)};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, ::freeaddrinfo);
  TcpResolved resolved;
  for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    TcpAddress address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    resolved.addresses.push_back(address);
  }
  if (resolved.addresses.empty()) resolved.problem = "it has no IPv4 or IPv6 address";
  return resolved;
}

TcpAddress at_port(const TcpAddress& address, int port) {
  TcpAddress with_port = address;
  set_port(with_port, port);
  return with_port;
}

// Only those can be bound to.
bool is_own_address(const TcpAddress& address) {
  const TcpAddress any_port = at_port(address, 0);
  const TcpSocket socket = make_socket(address.storage.ss_family);
  return socket.is_open() && ::bind(socket.descriptor(), as_sockaddr(any_port), any_port.size) == 0;
}

TcpSocket::~TcpSocket() { close(); }

TcpSocket::TcpSocket(TcpSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void TcpSocket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

TcpSocket TcpSocket::connect(const TcpAddress& address, TcpDeadline deadline) {
  TcpSocket socket = make_socket(address.storage.ss_family);
  if (!socket.is_open()) return {};
  if (::connect(socket.descriptor_, as_sockaddr(address), address.size) == 0) return socket;
  if (errno != EINPROGRESS && errno != EINTR) return {};
  if (!wait_for(socket.descriptor_, POLLOUT, deadline)) return {};
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return {};
  return socket;
}

TcpSocket TcpSocket::accept() const {
  return TcpSocket(::accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

std::optional<std::size_t> TcpSocket::receive_some(std::span<std::byte> out) const {
  for (;;) {
    const ssize_t got = ::recv(descriptor_, out.data(), out.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return std::nullopt;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return std::nullopt;
  }
}

bool TcpSocket::receive_all(std::span<std::byte> out, TcpDeadline deadline) const {
  while (!out.empty()) {
    const std::optional<std::size_t> got = receive_some(out);
    if (!got.has_value()) return false;
    out = out.subspan(*got);
    if (*got == 0 && !wait_for(descriptor_, POLLIN, deadline)) return false;
  }
  return true;
}

bool TcpSocket::send_all(std::span<const std::byte> bytes, TcpDeadline deadline) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(descriptor_, POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::vector<TcpSocket> listen_on(int port) {
  std::vector<TcpSocket> sockets;
  for (const int family : {AF_INET6, AF_INET}) {
    TcpSocket socket;
    const int error = listen_at(family, port, socket);
    if (error == 0) sockets.push_back(std::move(socket));
    // A machine without one of the two is none whose port is in use.
    if (error != 0 && error != EAFNOSUPPORT && error != EADDRNOTAVAIL) return {};
  }
  return sockets;
}

void wait_for_any(std::span<const int> descriptors, TcpDeadline deadline) {
  std::vector<pollfd> waited;
  for (const int descriptor : descriptors) waited.push_back({descriptor, POLLIN, 0});
  // Who is ready, and that nobody was, is seen by who reads next.
  static_cast<void>(::poll(waited.data(), waited.size(), milliseconds_until(deadline)));
}

}  // namespace terrace
