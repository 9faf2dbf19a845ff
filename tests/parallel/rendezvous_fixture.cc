#include "tests/parallel/rendezvous_fixture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// The ports of one rendezvous: the launcher's port and the 16 after it.
constexpr int kPortsOfOne = 17;
constexpr int kFirstPort = 10000;
constexpr int kSlots = 1300;
static_assert(kFirstPort + kSlots * kPortsOfOne < 32768);

bool are_free(int port) {
  std::vector<std::vector<TcpSocket>> all;
  for (int i = 0; i < kPortsOfOne; ++i) all.push_back(listen_on(port + i));
  return std::ranges::none_of(all, [](const auto& sockets) { return sockets.empty(); });
}

// Processes that run at the same time have numbers near each other, so neighbouring numbers start
// far apart.
int unused_ports() {
  static std::atomic<int> next = ::getpid() % kSlots * 37;
  for (int tries = 0; tries < kSlots; ++tries) {
    const int port = kFirstPort + next++ % kSlots * kPortsOfOne;
    if (are_free(port)) return port;
  }
  ADD_FAILURE() << "no ports are free";
  return kFirstPort;
}

}  // namespace

RendezvousBlob rendezvous_blob(int seed) {
  RendezvousBlob blob;
  for (std::size_t i = 0; i < blob.size(); ++i) {
    blob[i] = static_cast<std::byte>(static_cast<std::size_t>(seed) + i * 3);
  }
  return blob;
}

RendezvousOptions rendezvous_of(int ranks) {
  static std::atomic<int> jobs = 0;
  RendezvousOptions options;
  options.port = unused_ports();
  options.job = fmt::format("test-{}-{}", ::getpid(), jobs++);
  options.size = ranks;
  options.local_size = ranks;
  options.timeout = std::chrono::seconds(30);
  return options;
}

RendezvousOptions as_rank(RendezvousOptions options, int rank) {
  options.rank = options.local_rank = rank;
  return options;
}

Met meet(const RendezvousOptions& options, int seed) {
  Met met;
  if (options.rank == 0) met.blob = rendezvous_blob(seed);
  try {
    share_from_first_rank(options, met.blob);
  } catch (const Error& error) {
    met.error = error.what();
  }
  return met;
}

std::vector<Met> meet_as(const RendezvousOptions& options, const std::vector<int>& ranks,
                         int seed) {
  std::vector<Met> met(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { met[i] = meet(as_rank(options, ranks[i]), seed); });
  }
  threads.clear();
  return met;
}

void expect_met(const std::vector<Met>& all, int seed) {
  for (const Met& met : all) {
    EXPECT_EQ(met.error, "");
    EXPECT_EQ(met.blob, rendezvous_blob(seed));
  }
}

TcpDeadline in_a_while() { return Clock::now() + std::chrono::seconds(20); }

TcpSocket connect_to(int port) {
  const TcpAddress local = at_port(resolve_tcp("127.0.0.1").addresses.front(), port);
  TcpSocket socket = TcpSocket::start_connecting(local);
  TcpWait wait = {socket.descriptor(), true};
  for (const TcpDeadline until = in_a_while(); !wait.is_ready && Clock::now() < until;) {
    wait_for_any(std::span(&wait, 1), until);
  }
  EXPECT_TRUE(socket.is_open() && socket.has_connected()) << "nobody listens on port " << port;
  return socket;
}

TcpSocket say_hello_as(int port, const RendezvousOptions& options) {
  TcpSocket socket = connect_to(port);
  EXPECT_TRUE(socket.send_all(bytes_of(hello_of(options, sizeof(RendezvousBlob))), in_a_while()));
  return socket;
}

TcpSocket come_as(int port, const RendezvousOptions& options) {
  TcpSocket socket = say_hello_as(port, options);
  const std::optional<Answer> answer = receive_answer(socket, in_a_while());
  EXPECT_TRUE(answer.has_value() && answer->kind == AnswerKind::kWelcome);
  return socket;
}

bool is_hung_up(const TcpSocket& socket) {
  std::byte byte{};
  return socket.wait_to_receive(in_a_while()) &&
         !socket.receive_some(std::span(&byte, 1)).has_value();
}

std::span<const std::byte> bytes_of(const Hello& hello) {
  return std::as_bytes(std::span(&hello, 1));
}

TcpDeadline TestClock::now() {
  while (is_held_) {
    is_waiting_ = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  is_waiting_ = false;
  return Clock::now() + std::chrono::hours(is_late_ ? 10 : 0);
}

void TestClock::wait_until_held() const {
  while (!is_waiting_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

HostThread::HostThread(const RendezvousOptions& options, TestClock* clock)
    : options_(options),
      met_{options.rank == 0 ? rendezvous_blob() : RendezvousBlob{}, ""},
      host_(options_, met_.blob, Clock::now() + options.timeout,
            [clock] { return clock == nullptr ? Clock::now() : clock->now(); }),
      thread_([this] {
        try {
          host_.run();
        } catch (...) {
          failure_ = std::current_exception();
        }
      }) {}

HostThread::~HostThread() {
  if (thread_.joinable()) thread_.join();
}

Met HostThread::finish() {
  thread_.join();
  try {
    if (failure_) std::rethrow_exception(failure_);
  } catch (const Error& error) {
    met_.error = error.what();
  }
  return met_;
}

}  // namespace terrace
