#include "parallel/rendezvous.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "base/error.h"
#include "parallel/rendezvous_message.h"
#include "parallel/tcp_socket.h"

namespace terrace {
namespace {

using std::chrono::seconds;

using Blob = std::array<std::byte, 128>;

Blob blob_of(int seed) {
  Blob blob;
  for (std::size_t i = 0; i < blob.size(); ++i) {
    blob[i] = static_cast<std::byte>(static_cast<std::size_t>(seed) + i * 3);
  }
  return blob;
}

// A port that nobody listens on, with some after it that are likely free too.
int free_port() {
  const TcpResolved local = resolve_tcp("127.0.0.1");
  sockaddr_in bound = {};
  socklen_t size = sizeof(bound);
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::bind(descriptor, reinterpret_cast<const sockaddr*>(&local.addresses[0].storage),
                   local.addresses[0].size),
            0);
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &size);
  ::close(descriptor);
  return ntohs(bound.sin_port);
}

RendezvousOptions options_of(int ranks) {
  static std::atomic<int> jobs = 0;
  RendezvousOptions options;
  options.port = free_port();
  options.job = fmt::format("test-{}-{}", ::getpid(), jobs++);
  options.size = ranks;
  options.local_size = ranks;
  options.timeout = seconds(30);
  return options;
}

RendezvousOptions as_rank(RendezvousOptions options, int rank) {
  options.rank = options.local_rank = rank;
  return options;
}

// What a rank got, or the error that it ended with.
struct Met {
  Blob blob{};
  std::string error;
};

Met meet(const RendezvousOptions& options, int seed = 7) {
  Met met;
  if (options.rank == 0) met.blob = blob_of(seed);
  try {
    share_from_first_rank(options, met.blob);
  } catch (const Error& error) {
    met.error = error.what();
  }
  return met;
}

// The given ranks at once, each as a thread.
std::vector<Met> meet_as(const RendezvousOptions& options, const std::vector<int>& ranks,
                         int seed = 7) {
  std::vector<Met> met(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { met[i] = meet(as_rank(options, ranks[i]), seed); });
  }
  threads.clear();
  return met;
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

void expect_met(const std::vector<Met>& all, int seed = 7) {
  for (const Met& met : all) {
    EXPECT_EQ(met.error, "");
    EXPECT_EQ(met.blob, blob_of(seed));
  }
}

TcpDeadline in_a_while() { return std::chrono::steady_clock::now() + seconds(20); }

// A connection to the host of a rendezvous on `port`, once it is there.
TcpSocket knock(int port) {
  const TcpAddress local = at_port(resolve_tcp("127.0.0.1").addresses.front(), port);
  for (const TcpDeadline until = in_a_while(); std::chrono::steady_clock::now() < until;) {
    TcpSocket socket = TcpSocket::connect(local, until);
    if (socket.is_open()) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "nobody listens on port " << port;
  return {};
}

std::span<const std::byte> bytes_of(const Hello& hello) {
  return std::as_bytes(std::span(&hello, 1));
}

TEST(Rendezvous, GivesAllRanksTheBlobOfTheFirst) {
  for (const int ranks : {1, 2, 8}) expect_met(meet_as(options_of(ranks), first_ranks(ranks)));
}

TEST(Rendezvous, LeavesThePortOfTheLauncherAlone) {
  RendezvousOptions options = options_of(3);
  options.port_is_taken = true;
  const std::vector<TcpSocket> agent = listen_on(options.port);
  ASSERT_FALSE(agent.empty());
  expect_met(meet_as(options, {0, 1, 2}));
  EXPECT_FALSE(agent.front().accept().is_open());  // nobody came to it
}

TEST(Rendezvous, TakesNamesAndAddressesOfBothKinds) {
  std::vector<std::string> hosts = {"127.0.0.1", "localhost"};
  if (is_own_address(resolve_tcp("::1").addresses.front())) {
    hosts.insert(hosts.end(), {"::1", "[::1]"});
  }
  for (const std::string& host : hosts) {
    SCOPED_TRACE(host);
    RendezvousOptions options = options_of(2);
    options.address = host;
    expect_met(meet_as(options, {0, 1}));
  }
}

// The launcher's address may be that of a host where rank 0 is not.
TEST(Rendezvous, TheHostNeedNotBeTheFirstRank) {
  RendezvousOptions options = options_of(3);
  std::vector<Met> met(3);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      RendezvousOptions own = options;
      own.rank = rank;
      own.local_rank = (rank + 1) % 3;  // rank 2 serves
      met[static_cast<std::size_t>(rank)] = meet(own);
    });
  }
  threads.clear();
  expect_met(met);
}

TEST(Rendezvous, NamesTheRanksThatDoNotComeOnAllThatDo) {
  RendezvousOptions options = options_of(5);
  options.timeout = seconds(3);
  for (const Met& met : meet_as(options, {0, 1, 4})) {
    EXPECT_NE(met.error.find("ranks 2, 3 did not come"), std::string::npos) << met.error;
  }
  // Without the one who serves there is nobody to ask.
  options.timeout = std::chrono::milliseconds(200);
  for (const Met& met : meet_as(options, {3})) {
    EXPECT_NE(met.error.find("rank 3: found no rendezvous at 127.0.0.1"), std::string::npos)
        << met.error;
  }
}

TEST(Rendezvous, AnAddressThatIsNoneIsNamed) {
  RendezvousOptions options = options_of(2);
  options.timeout = seconds(1);
  options.address = "no..such.host";
  const Met met = meet(as_rank(options, 1));
  EXPECT_NE(met.error.find("no..such.host"), std::string::npos) << met.error;
}

TEST(Rendezvous, StrangersAreLeftOut) {
  const RendezvousOptions options = options_of(3);
  std::vector<Met> met;
  std::jthread host([&] { met.push_back(meet(as_rank(options, 0))); });
  const TcpSocket web = knock(options.port);
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  EXPECT_TRUE(web.send_all(std::as_bytes(std::span(request)), in_a_while()));
  const TcpSocket silent = knock(options.port);
  const TcpSocket half = knock(options.port);
  const Hello hello = hello_of(as_rank(options, 1), sizeof(Blob));
  EXPECT_TRUE(half.send_all(bytes_of(hello).first(20), in_a_while()));
  const std::vector<Met> others = meet_as(options, {1, 2});
  host.join();
  expect_met(others);
  expect_met(met);
  std::byte nothing{};
  EXPECT_FALSE(web.receive_all(std::span(&nothing, 1), in_a_while()));  // no answer
}

// As the store of another job does, which is on the port where this one would meet.
TEST(Rendezvous, APortThatAStrangerHasIsPassedOver) {
  const RendezvousOptions options = options_of(2);
  std::vector<TcpSocket> silent = listen_on(options.port);
  std::vector<TcpSocket> rude = listen_on(options.port + 1);
  ASSERT_FALSE(silent.empty());
  std::jthread talk([&rude](const std::stop_token& stop) {
    const std::string garbage(64, 'x');
    while (!stop.stop_requested()) {
      for (const TcpSocket& listener : rude) {
        const TcpSocket guest = listener.accept();
        if (guest.is_open()) guest.send_all(std::as_bytes(std::span(garbage)), in_a_while());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  expect_met(meet_as(options, {0, 1}));
}

TEST(Rendezvous, TwoJobsWithTheSamePortDoNotMeet) {
  const RendezvousOptions one = options_of(3);
  RendezvousOptions other = one;
  other.job += "-other";
  std::vector<Met> of_one;
  std::jthread first([&] { of_one = meet_as(one, {0, 1, 2}, 1); });
  const std::vector<Met> of_other = meet_as(other, {0, 1, 2}, 2);
  first.join();
  expect_met(of_one, 1);
  expect_met(of_other, 2);
}

TEST(Rendezvous, ARankOfAnEarlierAttemptIsTurnedAwayAndTold) {
  RendezvousOptions options = options_of(3);
  options.attempt = 1;
  std::vector<Met> met;
  std::jthread host([&] { met.push_back(meet(as_rank(options, 0))); });
  RendezvousOptions stale = as_rank(options, 1);
  stale.attempt = 0;
  stale.timeout = seconds(3);
  const Met late = meet(stale);
  EXPECT_NE(late.error.find("is of attempt 0 of the job, and this is attempt 1"), std::string::npos)
      << late.error;
  expect_met(meet_as(options, {1, 2}));
  host.join();
  expect_met(met);
}

TEST(Rendezvous, OtherSizesAndVersionsAreRefusedAtOnce) {
  const RendezvousOptions options = options_of(2);
  std::vector<Met> met;
  std::jthread host([&] { met.push_back(meet(as_rank(options, 0))); });
  RendezvousOptions larger = as_rank(options, 2);
  larger.size = 3;
  EXPECT_NE(meet(larger).error.find("rank 2 of 3, and this is rank 0 of 2"), std::string::npos);
  std::array<std::byte, 64> shorter{};
  EXPECT_THROW(share_from_first_rank(as_rank(options, 1), shorter), CommError);

  const TcpSocket socket = knock(options.port);
  Hello future = hello_of(as_rank(options, 1), sizeof(Blob));
  future.version = 2;
  EXPECT_TRUE(socket.send_all(bytes_of(future), in_a_while()));
  const std::optional<Answer> answer = receive_answer(socket, in_a_while());
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->kind, AnswerKind::kRefused);
  EXPECT_NE(answer->text().find("version 2"), std::string::npos) << answer->text();

  expect_met({meet(as_rank(options, 1))});
  host.join();
  expect_met(met);
}

TEST(Rendezvous, BytesMayComeOneByOne) {
  const RendezvousOptions options = options_of(2);
  std::vector<Met> met;
  // Rank 1 serves, and rank 0 gives the blob byte by byte.
  RendezvousOptions serving = options;
  serving.rank = 1;
  std::jthread host([&] { met.push_back(meet(serving)); });
  const TcpSocket socket = knock(options.port);
  const Hello hello = hello_of(options, sizeof(Blob));
  const Blob blob = blob_of(7);
  std::vector<std::byte> message(bytes_of(hello).begin(), bytes_of(hello).end());
  message.insert(message.end(), blob.begin(), blob.end());
  for (const std::byte& byte : message) {
    EXPECT_TRUE(socket.send_all(std::span(&byte, 1), in_a_while()));
  }
  const std::optional<Answer> welcome = receive_answer(socket, in_a_while());
  const std::optional<Answer> last = receive_answer(socket, in_a_while());
  ASSERT_TRUE(welcome.has_value() && last.has_value());
  EXPECT_EQ(last->kind, AnswerKind::kBlob);
  EXPECT_TRUE(socket.send_all(std::span(&kConfirmation, 1), in_a_while()));
  host.join();
  expect_met(met);
}

TEST(Rendezvous, ARankMayGoAndComeAgain) {
  const RendezvousOptions options = options_of(3);
  std::vector<Met> met;
  std::jthread host([&] { met.push_back(meet(as_rank(options, 0))); });
  for (int times = 0; times < 2; ++times) {
    const TcpSocket socket = knock(options.port);
    const Hello hello = hello_of(as_rank(options, 2), sizeof(Blob));
    EXPECT_TRUE(socket.send_all(bytes_of(hello), in_a_while()));
    EXPECT_TRUE(receive_answer(socket, in_a_while()).has_value());
  }
  expect_met(meet_as(options, {1, 2}));
  host.join();
  expect_met(met);
}

// A half-open connection looks the same to the host.
TEST(Rendezvous, ARankThatDoesNotConfirmIsNamed) {
  RendezvousOptions options = options_of(3);
  options.timeout = seconds(3);
  std::vector<Met> met;
  std::jthread host([&] { met.push_back(meet(as_rank(options, 0))); });
  const TcpSocket socket = knock(options.port);
  const Hello hello = hello_of(as_rank(options, 2), sizeof(Blob));
  EXPECT_TRUE(socket.send_all(bytes_of(hello), in_a_while()));
  expect_met({meet(as_rank(options, 1))});
  host.join();
  EXPECT_NE(met.front().error.find("rank 2 left the rendezvous"), std::string::npos)
      << met.front().error;
}

TEST(Rendezvous, WithoutAFreePortThereIsNone) {
  const RendezvousOptions options = options_of(2);
  std::vector<std::vector<TcpSocket>> taken;
  for (const int port : rendezvous_ports(options)) taken.push_back(listen_on(port));
  Blob blob{};
  EXPECT_THROW(share_from_first_rank(options, blob), EnvironmentError);
}

TEST(Rendezvous, PortsAreThoseAfterTheLaunchersOrBefore) {
  RendezvousOptions options;
  options.port = 29500;
  EXPECT_EQ(rendezvous_ports(options).front(), 29500);
  EXPECT_EQ(rendezvous_ports(options).back(), 29516);
  options.port_is_taken = true;
  EXPECT_EQ(rendezvous_ports(options).front(), 29501);
  options.port = 65530;
  EXPECT_EQ(rendezvous_ports(options).front(), 65529);
  EXPECT_EQ(rendezvous_ports(options).back(), 65514);
}

}  // namespace
}  // namespace terrace
