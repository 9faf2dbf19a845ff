#include "parallel/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "parallel/rendezvous_host.h"
#include "parallel/rendezvous_message.h"
#include "parallel/tcp_socket.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// How many ports after the launcher's are tried.
constexpr int kPorts = 16;
constexpr int kPortMax = 65535;
// A host of ours answers a hello at once; who does not is somebody else.
constexpr auto kAnswerTime = std::chrono::seconds(2);
constexpr auto kPause = std::chrono::milliseconds(50);
// The host's clock for the same timeout may have started later.
constexpr auto kVerdictTime = std::chrono::seconds(5);

// Names may take a while to be known everywhere. Nothing with a problem once the deadline is past.
TcpResolved resolve_until(const std::string& host, TcpDeadline deadline) {
  for (;;) {
    TcpResolved resolved = resolve_tcp(host);
    if (resolved.problem.empty() || Clock::now() >= deadline) return resolved;
    std::this_thread::sleep_for(kPause);
  }
}

// The first process of the host that has the address: rank 0 may be on another one, since the
// launcher's store need not be where it put rank 0.
bool serves(const RendezvousOptions& options) {
  if (options.local_rank != 0) return false;
  if (options.local_size == options.size) return true;
  const TcpResolved resolved = resolve_until(options.address, Clock::now() + options.timeout);
  return std::ranges::any_of(resolved.addresses, is_own_address);
}

class Guest {
 public:
  Guest(const RendezvousOptions& options, std::span<std::byte> blob)
      : options_(options),
        blob_(blob),
        ports_(rendezvous_ports(options)),
        deadline_(Clock::now() + options.timeout) {}

  void run() {
    while (Clock::now() < deadline_) {
      const TcpResolved resolved = resolve_until(options_.address, deadline_);
      news_ = resolved.problem.empty() ? news_ : resolved.problem;
      for (const int port : ports_) {
        for (const TcpAddress& address : resolved.addresses) {
          if (visit(at_port(address, port))) return;
        }
      }
      std::this_thread::sleep_for(kPause);
    }
    fail(fmt::format("found no rendezvous at {}, ports {} to {}, within {:g} s{}", options_.address,
                     ports_.front(), ports_.back(),
                     std::chrono::duration<double>(options_.timeout).count(),
                     news_.empty() ? "" : fmt::format(" ({})", news_)));
  }

 private:
  // Whether the blob is here.
  bool visit(const TcpAddress& address) {
    const TcpSocket socket = TcpSocket::connect(address, soon());
    if (!socket.is_open() || !say_hello(socket)) return false;
    const std::optional<Answer> first = receive_answer(socket, soon());
    if (!first.has_value() || !is_welcome(*first)) return false;
    const std::optional<Answer> last = receive_answer(socket, deadline_ + kVerdictTime);
    if (!last.has_value()) {
      news_ = "the process that had the rendezvous has gone, or says nothing";
      return false;
    }
    if (last->kind != AnswerKind::kBlob) fail(last->text());
    if (last->bytes.size() != blob_.size()) return false;
    std::ranges::copy(last->bytes, blob_.begin());
    return socket.send_all(std::span(&kConfirmation, 1), soon());
  }

  TcpDeadline soon() const { return std::min(deadline_, Clock::now() + kAnswerTime); }

  bool say_hello(const TcpSocket& socket) const {
    const Hello hello = hello_of(options_, blob_.size());
    std::vector<std::byte> message(sizeof(hello));
    std::memcpy(message.data(), &hello, sizeof(hello));
    if (options_.rank == 0) message.insert(message.end(), blob_.begin(), blob_.end());
    return socket.send_all(message, soon());
  }

  bool is_welcome(const Answer& answer) {
    if (answer.kind == AnswerKind::kWelcome) return true;
    news_ = answer.text();
    if (answer.kind != AnswerKind::kElsewhere) fail(news_);
    return false;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw CommError(fmt::format("rank {}: {}", options_.rank, what),
                    "see whether all ranks were started and what they printed; the address must be "
                    "one of a host of the job, with these ports open between its hosts");
  }

  const RendezvousOptions& options_;
  const std::span<std::byte> blob_;
  const std::vector<int> ports_;
  const TcpDeadline deadline_;
  std::string news_;  // why it did not work the last time
};

}  // namespace

RendezvousOptions rendezvous_options(const LaunchEnvironment& launch) {
  RendezvousOptions options;
  options.address = launch.master_address;
  options.port = launch.master_port;
  options.port_is_taken = launch.master_port_is_taken;
  options.job = launch.job;
  options.attempt = launch.attempt;
  options.size = launch.size;
  options.rank = launch.rank;
  options.local_rank = launch.local_rank;
  options.local_size = launch.local_size;
  return options;
}

std::vector<int> rendezvous_ports(const RendezvousOptions& options) {
  std::vector<int> ports;
  if (!options.port_is_taken) ports.push_back(options.port);
  const int step = options.port + kPorts <= kPortMax ? 1 : -1;
  for (int i = 1; i <= kPorts; ++i) ports.push_back(options.port + step * i);
  return ports;
}

void share_from_first_rank(const RendezvousOptions& options, std::span<std::byte> blob) {
  TERRACE_CHECK_LE(blob.size(), kRendezvousBlobMax);
  TERRACE_CHECK_LT(options.rank, options.size);
  if (options.size == 1) return;
  if (serves(options)) return RendezvousHost(options, blob).run();
  Guest(options, blob).run();
}

}  // namespace terrace
