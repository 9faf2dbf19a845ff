#include "parallel/tcp_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

constexpr int kBacklog = 1024;

[[noreturn]] void fail(const std::string& what, int error) {
  throw EnvironmentError(fmt::format("{}: {}", what, std::strerror(error)),
                         "the ranks meet over TCP: check the limits (ulimit -n) and the "
                         "permissions of this process");
}

int milliseconds_until(TcpDeadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

// Returns whether the descriptor is ready before the deadline.
bool wait_for(int descriptor, bool to_send, TcpDeadline deadline) {
  for (;;) {
    TcpWait wait = {descriptor, to_send};
    wait_for_any(std::span(&wait, 1), deadline);
    if (wait.is_ready) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

// Returns 0, or the errno of a machine that lacks this kind of addresses.
int make_socket(int family, TcpSocket& socket) {
  socket = TcpSocket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket.is_open()) {
    if (errno != EAFNOSUPPORT) fail("cannot create a socket", errno);
    return errno;
  }
  const int on = 1;  // small messages would wait for each other otherwise
  ::setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return 0;
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

// Returns 0, or an errno.
int listen_at(int family, int port, TcpSocket& socket) {
  if (const int error = make_socket(family, socket); error != 0) return error;
  const int on = 1;
  // Connections of an earlier attempt that are still winding down must not keep the port.
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

const in6_addr& ipv6_of(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
}

// Returns the IPv4 address, which may be mapped in an IPv6 address.
in_addr ipv4_of(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  }
  in_addr mapped;
  std::memcpy(&mapped, &ipv6_of(address).s6_addr[12], sizeof(mapped));
  return mapped;
}

bool is_ipv4(const sockaddr* address) {
  return address->sa_family == AF_INET ||
         (address->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&ipv6_of(address)));
}

bool is_loopback(const sockaddr* address) {
  if (is_ipv4(address)) return ntohl(ipv4_of(address).s_addr) >> 24 == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&ipv6_of(address));
}

bool are_same_host(const sockaddr* a, const sockaddr* b) {
  if (is_ipv4(a) || is_ipv4(b)) {
    return is_ipv4(a) && is_ipv4(b) && ipv4_of(a).s_addr == ipv4_of(b).s_addr;
  }
  return a->sa_family == AF_INET6 && b->sa_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&ipv6_of(a), &ipv6_of(b));
}

int port_in(const TcpAddress& address) {
  return ntohs(address.storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

bool are_same(const TcpAddress& a, const TcpAddress& b) {
  return are_same_host(as_sockaddr(a), as_sockaddr(b)) && port_in(a) == port_in(b);
}

// Returns the result of getsockname() or getpeername(); no address where it fails.
TcpAddress address_from(int (*ask)(int, sockaddr*, socklen_t*), int descriptor) {
  TcpAddress address;
  address.size = sizeof(sockaddr_storage);
  if (ask(descriptor, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return address;
}

// Returns whether an error of accept() concerns one connection: that connection is over, and the
// next may work.
bool is_of_one_connection(int error) {
  constexpr auto kErrors =
      std::to_array({EINTR, ECONNABORTED, EPROTO, ENOPROTOOPT, EOPNOTSUPP, ENETDOWN, ENETUNREACH,
                     EHOSTDOWN, EHOSTUNREACH, ENONET, ETIMEDOUT});
  return std::ranges::find(kErrors, error) != kErrors.end();
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

bool is_own_address(const TcpAddress& address) {
  if (is_loopback(as_sockaddr(address))) return true;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) fail("cannot list the addresses of this machine", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr != nullptr && are_same_host(one->ifa_addr, as_sockaddr(address))) return true;
  }
  return false;
}

std::vector<TcpAddress> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) fail("cannot list the addresses of this machine", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  std::vector<TcpAddress> addresses;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || is_loopback(one->ifa_addr)) continue;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6_of(one->ifa_addr))) continue;
    TcpAddress address;
    address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    std::memcpy(&address.storage, one->ifa_addr, address.size);
    addresses.push_back(address);
  }
  return addresses;
}

std::string text_of(const TcpAddress& address) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(as_sockaddr(address), address.size, host.data(), host.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return fmt::format("{} port {}", host.data(), port_in(address));
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

TcpSocket TcpSocket::start_connecting(const TcpAddress& address) {
  TcpSocket socket;
  if (make_socket(address.storage.ss_family, socket) != 0) return {};
  const int failed = ::connect(socket.descriptor_, as_sockaddr(address), address.size);
  if (failed != 0 && errno != EINPROGRESS && errno != EINTR) return {};
  return socket;
}

bool TcpSocket::has_connected() const {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    return false;
  }
  const TcpAddress own = address_from(::getsockname, descriptor_);
  const TcpAddress other = peer_address();
  return own.size != 0 && other.size != 0 && !are_same(own, other);
}

TcpAddress TcpSocket::peer_address() const { return address_from(::getpeername, descriptor_); }

void TcpSocket::watch_peer() const {
  const auto set = [this](int level, int option, int value) {
    ::setsockopt(descriptor_, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 20);  // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);  // milliseconds
}

TcpSocket TcpSocket::accept() const {
  for (;;) {
    TcpSocket socket(::accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.is_open() || errno == EAGAIN || errno == EWOULDBLOCK) return socket;
    if (!is_of_one_connection(errno)) fail("cannot accept a connection", errno);
  }
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

bool TcpSocket::wait_to_receive(TcpDeadline deadline) const {
  return wait_for(descriptor_, false, deadline);
}

bool TcpSocket::receive_all(std::span<std::byte> out, TcpDeadline deadline) const {
  while (!out.empty()) {
    const std::optional<std::size_t> got = receive_some(out);
    if (!got.has_value()) return false;
    out = out.subspan(*got);
    if (*got == 0 && !wait_to_receive(deadline)) return false;
  }
  return true;
}

bool TcpSocket::send_all(std::span<const std::byte> bytes, TcpDeadline deadline) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(descriptor_, true, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::vector<TcpSocket> listen_on(int port) {
  std::vector<TcpSocket> sockets;
  int last_error = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    TcpSocket socket;
    const int error = listen_at(family, port, socket);
    if (error == EADDRINUSE) return {};
    if (error == 0) {
      sockets.push_back(std::move(socket));
    } else if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {
      last_error = error;  // the machine has one kind of addresses only
    } else {
      fail(fmt::format("cannot listen on port {}", port), error);
    }
  }
  if (sockets.empty()) fail(fmt::format("cannot listen on port {}", port), last_error);
  return sockets;
}

// The second kind of addresses may find the port of the first in use, so several ports are tried.
TcpListening listen_on_any_port() {
  constexpr int kTries = 32;
  for (int i = 0; i < kTries; ++i) {
    TcpSocket probe;
    int error = listen_at(AF_INET6, 0, probe);
    if (error != 0) error = listen_at(AF_INET, 0, probe);
    if (error != 0) fail("cannot listen on any port", error);
    const int port = port_in(address_from(::getsockname, probe.descriptor()));
    probe.close();
    std::vector<TcpSocket> sockets = listen_on(port);
    if (!sockets.empty()) return {std::move(sockets), port};
  }
  fail("cannot listen on any port", EADDRINUSE);
}

void wait_for_any(std::span<TcpWait> waits, TcpDeadline deadline) {
  std::vector<pollfd> waited;
  for (const TcpWait& wait : waits) {
    waited.push_back({wait.descriptor, static_cast<short>(wait.to_send ? POLLOUT : POLLIN), 0});
  }
  const int ready = ::poll(waited.data(), waited.size(), milliseconds_until(deadline));
  if (ready < 0 && errno != EINTR) {
    fail(fmt::format("cannot wait for {} connections", waits.size()), errno);
  }
  for (std::size_t i = 0; i < waits.size(); ++i) {
    waits[i].is_ready = ready > 0 && waited[i].revents != 0;
  }
}

}  // namespace terrace
