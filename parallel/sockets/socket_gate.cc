#include "parallel/sockets/socket_gate.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kGateBacklog = 1024;

struct LocalAddress {
  sockaddr_un storage = {};
  socklen_t size = 0;

  // A name that begins with a zero byte is in the abstract namespace.
  explicit LocalAddress(const std::string& name) {
    TERRACE_CHECK_LT(name.size() + 1, sizeof(storage.sun_path));
    storage.sun_family = AF_UNIX;
    std::memcpy(&storage.sun_path[1], name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

TcpSocket local_socket() {
  TcpSocket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.is_open()) return socket;
  throw EnvironmentError(fmt::format("cannot create a Unix socket: {}", std::strerror(errno)),
                         "check the limits of this process (ulimit -n)");
}

TcpSocket listen_locally(const std::string& name) {
  TcpSocket socket = local_socket();
  const LocalAddress address(name);
  if (::bind(socket.descriptor(), address.get(), address.size) == 0 &&
      ::listen(socket.descriptor(), kGateBacklog) == 0) {
    return socket;
  }
  throw EnvironmentError(
      fmt::format("cannot listen on a Unix socket: {}", std::strerror(errno)),
      "ranks of a host meet by Unix sockets: check the permissions of this process");
}

// Returns a closed socket where nobody listens, or where too many wait already.
TcpSocket connect_locally(const std::string& name) {
  TcpSocket socket = local_socket();
  const LocalAddress address(name);
  if (::connect(socket.descriptor(), address.get(), address.size) != 0) return {};
  return socket;
}

// Sends a few bytes over a new connection, which has room for them.
template <typename T>
bool send_small(const TcpSocket& socket, const T& value) {
  return socket.send_all(std::as_bytes(std::span(&value, 1)), Clock::now());
}

// Receives the part of `value` that has come. Returns false if the other side has hung up.
template <typename T>
bool receive_part(const TcpSocket& socket, T& value, std::size_t& received) {
  const auto bytes = std::as_writable_bytes(std::span(&value, 1));
  while (received < sizeof(T)) {
    const std::optional<std::size_t> got = socket.receive_some(bytes.subspan(received));
    if (!got) return false;
    if (*got == 0) return true;
    received += *got;
  }
  return true;
}

}  // namespace

SocketGate::SocketGate(const WorldId& world, int rank)
    : world_(world),
      rank_(rank),
      listening_(listen_on_any_port()),
      local_(listen_locally(local_name_of(world, rank))) {}

void SocketGate::look() {
  const std::lock_guard lock(mutex_);
  accept_callers();
  std::erase_if(callers_, [this](Caller& caller) { return hear(caller); });
}

void SocketGate::accept_callers() {
  const auto accept_from = [this](const TcpSocket& listener) {
    while (callers_.size() < kCallersMax) {
      TcpSocket socket = listener.accept();
      if (!socket.is_open()) return;
      callers_.push_back({std::move(socket), {}, 0, Clock::now() + kHelloTime});
    }
  };
  accept_from(local_);
  for (const TcpSocket& listener : listening_.sockets) accept_from(listener);
}

bool SocketGate::hear(Caller& caller) {
  if (!receive_part(caller.socket, caller.hello, caller.received)) return true;
  if (caller.received < sizeof(GateHello)) return Clock::now() > caller.until;
  const GateHello& hello = caller.hello;
  const GateHello expected;
  if (hello.magic != expected.magic || hello.version != expected.version || hello.world != world_ ||
      hello.to != rank_) {
    return true;
  }
  if (!send_small(caller.socket, GateAnswer{.world = world_, .rank = rank_})) return true;
  connected_.emplace(std::pair(hello.group, hello.from), std::move(caller.socket));
  return true;
}

TcpSocket SocketGate::take(GroupId group, int from) {
  const std::lock_guard lock(mutex_);
  const auto found = connected_.find({group, from});
  if (found == connected_.end()) return {};
  TcpSocket socket = std::move(found->second);
  connected_.erase(found);
  return socket;
}

void SocketGate::add_waits(std::vector<TcpWait>& waits) const {
  waits.push_back({local_.descriptor()});
  for (const TcpSocket& listener : listening_.sockets) waits.push_back({listener.descriptor()});
}

GateCall::GateCall(const GateAddress& address, const GateHello& hello)
    : is_local_(!address.local_name.empty()),
      hello_(hello),
      socket_(is_local_ ? connect_locally(address.local_name)
                        : TcpSocket::start_connecting(address.tcp)) {}

GateCall::State GateCall::go_on() {
  if (!socket_.is_open()) return State::kFailed;
  if (!has_said_hello_) {
    if (!is_local_) {
      TcpWait connecting = {socket_.descriptor(), true};
      wait_for_any(std::span(&connecting, 1), Clock::now());
      if (!connecting.is_ready) return State::kWaits;
      if (!socket_.has_connected()) return State::kFailed;
    }
    if (!send_small(socket_, hello_)) return State::kFailed;
    has_said_hello_ = true;
  }
  if (!receive_part(socket_, answer_, received_)) return State::kFailed;
  if (received_ < sizeof(GateAnswer)) return State::kWaits;
  const bool is_right = answer_.magic == GateAnswer{}.magic && answer_.world == hello_.world &&
                        answer_.rank == hello_.to;
  return is_right ? State::kAnswered : State::kFailed;
}

}  // namespace terrace
