#include "parallel/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "base/error.h"
#include "parallel/rendezvous_guest.h"
#include "tests/parallel/rendezvous_fixture.h"

namespace terrace {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

// Returns the next guest that comes to one of the listeners.
TcpSocket await_guest(const std::vector<TcpSocket>& listeners) {
  for (const TcpDeadline until = in_a_while(); std::chrono::steady_clock::now() < until;) {
    std::vector<TcpWait> waits;
    for (const TcpSocket& listener : listeners) waits.push_back({listener.descriptor()});
    wait_for_any(waits, until);
    for (const TcpSocket& listener : listeners) {
      TcpSocket guest = listener.accept();
      if (guest.is_open()) return guest;
    }
  }
  ADD_FAILURE() << "nobody came";
  return {};
}

// Returns the error of rank 1 of two at a host that the test plays: `answer` answers the rank's
// hello.
std::string error_with_host(const std::function<void(const TcpSocket& guest)>& answer,
                            milliseconds own_time) {
  const RendezvousOptions options = as_rank(rendezvous_of(2), 1);
  const std::vector<TcpSocket> listeners = listen_on(options.port);
  EXPECT_FALSE(listeners.empty());
  std::string what = "none";
  std::jthread rank([&] {
    RendezvousBlob blob{};
    try {
      RendezvousGuest(options, blob, std::chrono::steady_clock::now() + own_time).run();
    } catch (const CommError& error) {
      what = error.what();
    }
  });
  const TcpSocket guest = await_guest(listeners);
  Hello hello;
  EXPECT_TRUE(guest.receive_all(std::as_writable_bytes(std::span(&hello, 1)), in_a_while()));
  EXPECT_EQ(hello.magic, kHelloMagic);
  answer(guest);
  rank.join();
  return what;
}

TEST(Rendezvous, GivesAllRanksTheBlobOfTheFirst) {
  for (const int ranks : {1, 2, 8}) expect_met(meet_as(rendezvous_of(ranks), first_ranks(ranks)));
}

TEST(Rendezvous, LeavesThePortOfTheLauncherAlone) {
  RendezvousOptions options = rendezvous_of(3);
  options.port_is_taken = true;
  const std::vector<TcpSocket> agent = listen_on(options.port);
  ASSERT_FALSE(agent.empty());
  expect_met(meet_as(options, {0, 1, 2}));
  for (const TcpSocket& socket : agent) EXPECT_FALSE(socket.accept().is_open());
}

TEST(Rendezvous, TakesNamesAndAddressesOfBothKinds) {
  std::vector<std::string> hosts = {"127.0.0.1", "localhost"};
  if (listen_on(rendezvous_of(1).port).size() == 2) hosts.insert(hosts.end(), {"::1", "[::1]"});
  for (const std::string& host : hosts) {
    SCOPED_TRACE(host);
    RendezvousOptions options = rendezvous_of(2);
    options.address = host;
    expect_met(meet_as(options, {0, 1}));
  }
}

// The launcher's address may belong to a host where rank 0 does not run.
TEST(Rendezvous, TheHostNeedNotBeTheFirstRank) {
  const RendezvousOptions options = rendezvous_of(3);
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

// With ranks on several hosts, the first rank of each host checks whether the address is its own.
TEST(Rendezvous, TheHostThatHasTheAddressServes) {
  RendezvousOptions options = rendezvous_of(3);
  const TcpDeadline now = std::chrono::steady_clock::now();
  EXPECT_TRUE(serves_rendezvous(options, now));
  EXPECT_FALSE(serves_rendezvous(as_rank(options, 1), now));
  options.local_size = 2;
  EXPECT_TRUE(serves_rendezvous(options, now));
  EXPECT_FALSE(serves_rendezvous(as_rank(options, 1), now));
  expect_met(meet_as(options, {0, 1, 2}));
  options.address = "192.0.2.1";  // an address that no host has
  EXPECT_FALSE(serves_rendezvous(options, now));
  options.local_size = 3;  // there is no other host
  EXPECT_TRUE(serves_rendezvous(options, now));
}

TEST(Rendezvous, WithoutAHostTheErrorSaysWhereItWasLookedFor) {
  RendezvousOptions options = as_rank(rendezvous_of(5), 3);
  options.timeout = milliseconds(0);
  const Met met = meet(options);
  EXPECT_THAT(met.error, HasSubstr("rank 3: found no rendezvous at 127.0.0.1, ports " +
                                   std::to_string(options.port)));
}

TEST(Rendezvous, AnAddressThatIsNoneIsNamed) {
  RendezvousOptions options = as_rank(rendezvous_of(2), 1);
  options.timeout = milliseconds(0);
  options.address = "no..such.host";
  EXPECT_THAT(meet(options).error, HasSubstr("found no rendezvous at no..such.host"));
}

// The store of another job behaves like this, on the port where this job would meet.
TEST(Rendezvous, PortsThatStrangersHaveArePassedOver) {
  const RendezvousOptions options = rendezvous_of(3);
  const std::vector<TcpSocket> silent = listen_on(options.port);
  const std::vector<TcpSocket> rude = listen_on(options.port + 1);
  const std::vector<TcpSocket> echoing = listen_on(options.port + 2);
  ASSERT_FALSE(silent.empty() || rude.empty() || echoing.empty());
  std::jthread talk([&](const std::stop_token& stop) {
    const std::string garbage(64, 'x');
    std::vector<TcpSocket> echoes;
    while (!stop.stop_requested()) {
      for (const TcpSocket& listener : rude) {
        const TcpSocket guest = listener.accept();
        if (guest.is_open()) guest.send_all(std::as_bytes(std::span(garbage)), in_a_while());
      }
      for (const TcpSocket& listener : echoing) {
        TcpSocket guest = listener.accept();
        if (guest.is_open()) echoes.push_back(std::move(guest));
      }
      for (const TcpSocket& guest : echoes) {
        std::array<std::byte, 512> bytes{};
        const std::size_t got = guest.receive_some(bytes).value_or(0);
        guest.send_all(std::span(bytes).first(got), in_a_while());
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  // The guests include rank 0, whose hello is the longest.
  std::vector<Met> met(3);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      RendezvousOptions own = as_rank(options, rank);
      own.local_rank = 2 - rank;
      met[static_cast<std::size_t>(rank)] = meet(own);
    });
  }
  ranks.clear();
  expect_met(met);
}

TEST(Rendezvous, TwoJobsWithTheSamePortDoNotMeet) {
  const RendezvousOptions one = rendezvous_of(3);
  RendezvousOptions other = one;
  other.job += "-other";
  std::vector<Met> of_one;
  std::jthread first([&] { of_one = meet_as(one, {0, 1, 2}, 1); });
  const std::vector<Met> of_other = meet_as(other, {0, 1, 2}, 2);
  first.join();
  expect_met(of_one, 1);
  expect_met(of_other, 2);
}

// torchrun's agents do not agree on how often they have restarted the job.
TEST(Rendezvous, RanksOfWhateverAttemptMeet) {
  const RendezvousOptions options = rendezvous_of(3);
  std::vector<Met> met(3);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      RendezvousOptions own = as_rank(options, rank);
      own.attempt = rank * 2;
      met[static_cast<std::size_t>(rank)] = meet(own);
    });
  }
  threads.clear();
  expect_met(met);
}

// By its own clock, the guest's time is long over when it finds the host, which waits for another
// rank.
TEST(Rendezvous, AHostThatCameLateIsWaitedFor) {
  const RendezvousOptions options = rendezvous_of(3);
  HostThread host(options);
  Met early;
  std::jthread rank([&] {
    const TcpDeadline past = std::chrono::steady_clock::now() - std::chrono::hours(1);
    try {
      RendezvousGuest(as_rank(options, 1), early.blob, past).run();
    } catch (const CommError& error) {
      early.error = error.what();
    }
  });
  const Met late = meet(as_rank(options, 2));
  rank.join();
  expect_met({early, late, host.finish()});
}

TEST(Rendezvous, ItIsTheHostsClockThatAGuestWaitsBy) {
  const milliseconds past = -std::chrono::hours(1);
  const auto verdict = [](const TcpSocket& guest) {
    EXPECT_TRUE(send_welcome(guest, milliseconds(30'000), in_a_while()));
    // By now a guest that would not wait would have left.
    EXPECT_FALSE(guest.wait_to_receive(std::chrono::steady_clock::now() + milliseconds(200)));
    EXPECT_TRUE(send_answer(guest, AnswerKind::kMissing, "ranks 7, 8 did not come", in_a_while()));
  };
  EXPECT_THAT(error_with_host(verdict, past), HasSubstr("rank 1: ranks 7, 8 did not come"));
}

TEST(Rendezvous, WhatTheHostSaysWrongIsNamedWithBothValues) {
  const milliseconds own_time(30'000);
  const auto short_blob = [](const TcpSocket& guest) {
    const std::array<std::byte, 64> blob{};
    EXPECT_TRUE(send_welcome(guest, milliseconds(30'000), in_a_while()));
    EXPECT_TRUE(
        send_answer(guest, AnswerKind::kBlob, std::span<const std::byte>(blob), in_a_while()));
  };
  EXPECT_THAT(error_with_host(short_blob, own_time),
              HasSubstr("sent 64 bytes, but 128 are expected"));
  const auto later_version = [](const TcpSocket& guest) {
    AnswerHead head;
    head.version = 9;
    head.kind = static_cast<AnswerKind>(77);
    EXPECT_TRUE(guest.send_all(std::as_bytes(std::span(&head, 1)).first(16), in_a_while()));
  };
  EXPECT_THAT(error_with_host(later_version, own_time), HasSubstr("version 9, this one has 1"));
  const auto no_end = [](const TcpSocket& guest) {
    EXPECT_TRUE(send_welcome(guest, milliseconds(30'000), in_a_while()));
    const RendezvousBlob blob = rendezvous_blob();
    EXPECT_TRUE(
        send_answer(guest, AnswerKind::kBlob, std::span<const std::byte>(blob), in_a_while()));
    std::byte said{};
    EXPECT_TRUE(guest.receive_all(std::span(&said, 1), in_a_while()));
    EXPECT_EQ(said, kConfirmation);
    EXPECT_TRUE(send_answer(guest, AnswerKind::kMissing, "rank 7 left", in_a_while()));
  };
  EXPECT_THAT(error_with_host(no_end, own_time), HasSubstr("rank 1: rank 7 left"));
}

TEST(Rendezvous, PortsAreThoseAfterTheLaunchersOrBefore) {
  RendezvousOptions options;
  options.port = 29500;
  EXPECT_EQ(rendezvous_ports(options).front(), 29500);
  EXPECT_EQ(rendezvous_ports(options).back(), 29516);
  options.port_is_taken = true;
  EXPECT_EQ(rendezvous_ports(options).front(), 29501);
  for (const int port : {1, 65519, 65520, 65530, 65535}) {
    options.port = port;
    const std::vector<int> ports = rendezvous_ports(options);
    EXPECT_EQ(ports.size(), 16);
    for (const int one : ports) EXPECT_TRUE(one >= 1 && one <= 65535) << one;
  }
  EXPECT_EQ(rendezvous_ports(options).front(), 65534);
  EXPECT_EQ(rendezvous_ports(options).back(), 65519);
}

}  // namespace
}  // namespace terrace
