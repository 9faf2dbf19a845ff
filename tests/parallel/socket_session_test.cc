#include "parallel/sockets/socket_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "parallel/sockets/socket_gate.h"
#include "parallel/sockets/socket_meeting.h"
#include "tests/parallel/rendezvous_fixture.h"
#include "tests/parallel/socket_ranks_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

void all_reduce(Communicator& ranks, std::size_t count = 96) {
  std::vector<float> data(count, 1.0F);
  ranks.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
}

TEST(SocketSession, KnowsItsRanksAndTheirHosts) {
  for (const auto& [per_host, hosts] : {std::pair(0, 1), std::pair(2, 2), std::pair(1, 3)}) {
    std::atomic<int> ranks = 0;
    const auto errors =
        run_sessions(socket_setting_of(3, per_host), {0, 1, 2}, [&](SocketSession& session) {
          EXPECT_EQ(session.size(), 3);
          EXPECT_EQ(session.hosts(), hosts);
          ranks += 1 << session.rank();
          EXPECT_EQ(session.end(0), 0);
        });
    EXPECT_THAT(errors, Each(""));
    EXPECT_EQ(ranks, 7);
  }
}

TEST(SocketSession, AllRanksEndWithTheLargestCode) {
  const auto errors = run_sessions(socket_setting_of(3), {0, 1, 2}, [](SocketSession& session) {
    EXPECT_EQ(session.end(session.rank() == 1 ? 5 : 0), 5);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(SocketSession, SeveralWorldsWorkSideBySide) {
  const auto errors = run_sessions(socket_setting_of(2, 1), {0, 1}, [](SocketSession& session) {
    const auto first = session.make_world("first");
    const auto second = session.make_world("second");
    std::jthread other([&] {
      for (int i = 0; i < 50; ++i) all_reduce(*first, 5000);
    });
    for (int i = 0; i < 50; ++i) all_reduce(*second, 7000);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(SocketSession, RanksThatDoNotComeAreNamed) {
  SocketSetting setting = socket_setting_of(3);
  setting.meeting.timeout = std::chrono::milliseconds(300);
  const auto errors = run_sessions(setting, {0, 1}, [](SocketSession&) {});
  EXPECT_THAT(errors, Each(HasSubstr("rank 2")));
}

// A firewall may let the rendezvous through and nothing else.
TEST(SocketMeeting, RanksThatDoNotConnectAreNamed) {
  const WorldId world = random_world_id();
  const TcpAddress loopback = resolve_tcp("127.0.0.1").addresses.front();
  for (const int rank : {0, 1}) {
    SocketGate gate(world, rank);
    std::vector<RankPlace> places(2);
    places[1] = {.host = {1, 1, 1}, .port = 1, .address = loopback};
    places[0].port = 1;  // where nobody listens
    const RankAddresses addresses({.world = world, .rank = rank, .first = loopback}, places);
    const SocketMeeting meeting = {
        .gate = gate,
        .addresses = addresses,
        .world = world,
        .rank = rank,
        .group = 5,
        .deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100)};
    try {
      (void)meeting.connect(std::vector<int>{0, 1});
      ADD_FAILURE() << "no CommError";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr(rank == 0 ? "rank 1 has not connected"
                                      : "rank 0 does not answer at 127.0.0.1 port 1"));
    }
  }
}

// Rank 1 is a process of its own, which is killed while rank 0 waits for it.
TEST(SocketSession, ARankThatDiesEndsTheOthersAndIsNamed) {
  for (const int per_host : {0, 1}) {
    const SocketSetting setting = socket_setting_of(2, per_host);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        SocketSession session(as_rank(setting, 1));
        const auto world = session.make_world("world");
        all_reduce(*world);
        ::kill(::getpid(), SIGKILL);
      } catch (...) {
      }
      ::_exit(1);
    }
    ASSERT_GT(child, 0);
    int code = -1;
    const auto errors = run_sessions(setting, {0}, [&](SocketSession& session) {
      {
        const auto world = session.make_world("world");
        all_reduce(*world);
        try {
          all_reduce(*world);
          ADD_FAILURE() << "no CommError";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(),
                      AnyOf(HasSubstr("rank 1 has died"), HasSubstr("rank 1 has left")));
        }
      }
      code = session.end(0);
    });
    EXPECT_THAT(errors, Each(""));
    EXPECT_EQ(code, 1);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }
}

TEST(SocketSession, ARankThatLeavesEndsTheOthersAndIsNamed) {
  for (const int per_host : {0, 1}) {
    const auto errors =
        run_sessions(socket_setting_of(2, per_host), {0, 1}, [](SocketSession& session) {
          const auto world = session.make_world("world");
          all_reduce(*world);
          if (session.rank() == 0) all_reduce(*world);
        });
    EXPECT_THAT(errors, ElementsAre(AllOf(HasSubstr("rank 1"), HasSubstr("left")), ""));
  }
}

// The rank that comes to make a communicator finds that another has failed before.
TEST(SocketSession, AnAbortEndsTheMakingOfACommunicator) {
  const auto errors = run_sessions(socket_setting_of(2), {0, 1}, [](SocketSession& session) {
    const auto world = session.make_world("world");
    all_reduce(*world);
    if (session.rank() == 1) {
      world->abort("the disk is full");
      return;
    }
    (void)session.make_world("second");
  });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("the disk is full"), ""));
}

TEST(SocketSession, AsksWhereRanksOfSeveralHostsMeet) {
  LaunchEnvironment launch;
  launch.source_is = "mpirun of Open MPI";
  launch.size = 4;
  launch.local_size = 2;
  try {
    (void)socket_setting(launch);
    ADD_FAILURE() << "no EnvironmentError";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.remedy(), HasSubstr("MASTER_ADDR"));
  }
  launch.master_address = "node1";
  EXPECT_EQ(socket_setting(launch).meeting.address, "node1");
  launch.master_address = "127.0.0.1";
  launch.local_size = 4;
  EXPECT_EQ(socket_setting(launch).meeting.size, 4);
}

// The gate looks until a caller was answered or dropped.
class GateTest : public testing::Test {
 protected:
  GateHello hello() const { return {.from = 3, .to = 2, .world = world_, .group = 9}; }
  TcpSocket call_with(const GateHello& hello) {
    TcpSocket socket = connect_to(gate_.port());
    EXPECT_TRUE(socket.send_all(std::as_bytes(std::span(&hello, 1)), in_a_while()));
    return socket;
  }
  bool is_dropped(const TcpSocket& socket) {
    std::jthread looks([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) gate_.look();
    });
    return is_hung_up(socket);
  }

  const WorldId world_ = random_world_id();
  SocketGate gate_{world_, 2};
};

TEST_F(GateTest, DropsStrangers) {
  GateHello other_job = hello();
  other_job.world[0] ^= 1;
  GateHello other_rank = hello();
  other_rank.to = 1;
  GateHello other_version = hello();
  ++other_version.version;
  GateHello no_hello = hello();
  no_hello.magic[0] = 'G';
  for (const GateHello& one : {other_job, other_rank, other_version, no_hello}) {
    EXPECT_TRUE(is_dropped(call_with(one)));
    EXPECT_FALSE(gate_.take(9, 3).is_open());
  }
  TcpSocket leaves = connect_to(gate_.port());
  leaves.close();
  gate_.look();
  EXPECT_FALSE(gate_.take(9, 3).is_open());
}

TEST_F(GateTest, KeepsConnectionsByGroupAndRank) {
  for (const bool is_local : {false, true}) {
    GateAddress address;
    if (is_local) {
      address.local_name = local_name_of(world_, 2);
    } else {
      address.tcp = at_port(resolve_tcp("127.0.0.1").addresses.front(), gate_.port());
    }
    GateCall call(address, hello());
    GateCall::State state = GateCall::State::kWaits;
    for (const TcpDeadline until = in_a_while();
         state == GateCall::State::kWaits && std::chrono::steady_clock::now() < until;) {
      gate_.look();
      state = call.go_on();
    }
    ASSERT_EQ(state, GateCall::State::kAnswered);
    EXPECT_FALSE(gate_.take(8, 3).is_open());
    EXPECT_FALSE(gate_.take(9, 1).is_open());
    const TcpSocket ours = gate_.take(9, 3);
    EXPECT_TRUE(ours.is_open());
    EXPECT_FALSE(gate_.take(9, 3).is_open());
    const std::byte sent{42};
    std::byte received{};
    EXPECT_TRUE(call.take().send_all(std::span(&sent, 1), in_a_while()));
    EXPECT_TRUE(ours.receive_all(std::span(&received, 1), in_a_while()));
    EXPECT_EQ(received, sent);
  }
}

// Someone else may listen at an address of another machine that has the same number here.
TEST(GateCallTest, FailsWhereSomeoneElseAnswers) {
  const TcpListening other = listen_on_any_port();
  const GateAddress address = {
      .local_name = {}, .tcp = at_port(resolve_tcp("127.0.0.1").addresses.front(), other.port)};
  GateCall call(address, {.from = 1, .to = 0, .world = random_world_id()});
  TcpSocket accepted;
  GateCall::State state = GateCall::State::kWaits;
  for (const TcpDeadline until = in_a_while();
       state == GateCall::State::kWaits && std::chrono::steady_clock::now() < until;) {
    state = call.go_on();
    for (const TcpSocket& listener : other.sockets) {
      if (!accepted.is_open()) accepted = listener.accept();
    }
    if (!accepted.is_open()) continue;
    const GateAnswer answer = {.world = random_world_id(), .rank = 0};
    accepted.send_all(std::as_bytes(std::span(&answer, 1)), in_a_while());
  }
  EXPECT_EQ(state, GateCall::State::kFailed);
}

}  // namespace
}  // namespace terrace
