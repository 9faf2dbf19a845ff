#include "parallel/rendezvous_host.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.h"
#include "tests/parallel/rendezvous_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string expect_answer(const TcpSocket& socket, AnswerKind kind) {
  const std::optional<Answer> answer = receive_answer(socket, in_a_while());
  EXPECT_TRUE(answer.has_value());
  if (!answer.has_value()) return "none";
  EXPECT_EQ(answer->kind, kind);
  return answer->text();
}

// Sends a stranger's bytes and waits until the host drops it. The host hears its guests in the
// order in which they came, so it has heard all earlier ones.
void wait_until_all_is_heard(int port) {
  const TcpSocket stranger = connect_to(port);
  const std::string rubbish = "rubbish\n";
  EXPECT_TRUE(stranger.send_all(std::as_bytes(std::span(rubbish)), in_a_while()));
  EXPECT_TRUE(is_hung_up(stranger));
}

TEST(RendezvousHost, NamesTheRanksThatDidNotComeToAllThatDid) {
  const RendezvousOptions options = rendezvous_of(6);
  TestClock clock;
  HostThread host(options, &clock);
  const TcpSocket first = come_as(host.port(), as_rank(options, 1));
  const TcpSocket fourth = come_as(host.port(), as_rank(options, 4));
  come_as(host.port(), as_rank(options, 5)).close();
  wait_until_all_is_heard(host.port());
  clock.let_time_pass();
  const TcpSocket wakes_it = connect_to(host.port());
  const std::string error = host.finish().error;
  EXPECT_THAT(error, HasSubstr("ranks 2, 3 did not join the rendezvous within 30 s"));
  EXPECT_THAT(error, HasSubstr("; rank 5 joined and left"));
  for (const TcpSocket* guest : {&first, &fourth}) {
    EXPECT_THAT(error, StartsWith(expect_answer(*guest, AnswerKind::kMissing)));
  }
}

TEST(RendezvousHost, WhoLeftIsNotSaidNotToHaveCome) {
  const RendezvousOptions options = rendezvous_of(3);
  TestClock clock;
  HostThread host(options, &clock);
  come_as(host.port(), as_rank(options, 1)).close();
  const TcpSocket second = come_as(host.port(), as_rank(options, 2));
  clock.let_time_pass();
  const TcpSocket wakes_it = connect_to(host.port());
  const std::string error = host.finish().error;
  EXPECT_THAT(error, HasSubstr("rank 1 joined the rendezvous, left it"));
  EXPECT_THAT(error, StartsWith(expect_answer(second, AnswerKind::kMissing)));
}

TEST(RendezvousHost, StrangersAreLeftOut) {
  const RendezvousOptions options = rendezvous_of(3);
  HostThread host(options);
  const TcpSocket web = connect_to(host.port());
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  EXPECT_TRUE(web.send_all(std::as_bytes(std::span(request)), in_a_while()));
  const TcpSocket silent = connect_to(host.port());
  const TcpSocket half = connect_to(host.port());
  const Hello hello = hello_of(as_rank(options, 1), sizeof(RendezvousBlob));
  EXPECT_TRUE(half.send_all(bytes_of(hello).first(20), in_a_while()));
  EXPECT_TRUE(is_hung_up(web));  // no answer
  expect_met(meet_as(options, {1, 2}));
  expect_met({host.finish()});
}

TEST(RendezvousHost, WhoSaysNothingIsDropped) {
  RendezvousOptions options = rendezvous_of(2);
  options.hello_time = std::chrono::milliseconds(50);
  HostThread host(options);
  const TcpSocket silent = connect_to(host.port());
  const TcpSocket half = connect_to(host.port());
  const Hello hello = hello_of(as_rank(options, 1), sizeof(RendezvousBlob));
  EXPECT_TRUE(half.send_all(bytes_of(hello).first(20), in_a_while()));
  EXPECT_TRUE(is_hung_up(silent));
  EXPECT_TRUE(is_hung_up(half));
  expect_met({meet(as_rank(options, 1)), host.finish()});
}

// A stranger that comes when all places are taken is not let in before one of the others has left.
TEST(RendezvousHost, SoManyStrangersAndNoMoreAreLetIn) {
  RendezvousOptions options = rendezvous_of(2);
  options.hello_time = std::chrono::hours(1);
  for (const bool has_room : {true, false}) {
    HostThread host(options);
    std::vector<TcpSocket> silent;
    const std::size_t room = 2 + kRendezvousStrangersMax;
    while (silent.size() < room - (has_room ? 1 : 0)) silent.push_back(connect_to(host.port()));
    // If there is room, this one is answered before the next, which ends the rendezvous.
    const TcpSocket last = say_hello_as(host.port(), as_rank(options, 9));
    const Hello hello = hello_of(as_rank(options, 1), sizeof(RendezvousBlob));
    if (has_room) expect_answer(last, AnswerKind::kRefused);
    EXPECT_TRUE(silent.front().send_all(bytes_of(hello), in_a_while()));
    expect_answer(silent.front(), AnswerKind::kWelcome);
    expect_answer(silent.front(), AnswerKind::kBlob);
    EXPECT_TRUE(silent.front().send_all(std::span(&kConfirmation, 1), in_a_while()));
    expect_answer(silent.front(), AnswerKind::kDone);
    expect_met({host.finish()});
    EXPECT_TRUE(is_hung_up(last));
  }
}

TEST(RendezvousHost, AStrangerThatLeavesMakesRoom) {
  RendezvousOptions options = rendezvous_of(2);
  options.hello_time = std::chrono::hours(1);
  HostThread host(options);
  std::vector<TcpSocket> silent;
  while (silent.size() < 2 + kRendezvousStrangersMax) silent.push_back(connect_to(host.port()));
  const TcpSocket last = say_hello_as(host.port(), as_rank(options, 1));
  silent.clear();
  expect_answer(last, AnswerKind::kWelcome);
  expect_answer(last, AnswerKind::kBlob);
  EXPECT_TRUE(last.send_all(std::span(&kConfirmation, 1), in_a_while()));
  expect_answer(last, AnswerKind::kDone);
  expect_met({host.finish()});
}

TEST(RendezvousHost, OtherJobsSizesAndVersionsAreTurnedAwayAtOnce) {
  const RendezvousOptions options = rendezvous_of(2);
  HostThread host(options);
  RendezvousOptions larger = as_rank(options, 2);
  larger.size = 3;
  EXPECT_THAT(meet(larger).error, HasSubstr("rank 2 of 3, but this is rank 0 of 2"));
  std::array<std::byte, 64> shorter{};
  EXPECT_THROW(share_from_first_rank(as_rank(options, 1), shorter), CommError);

  Hello future = hello_of(as_rank(options, 1), sizeof(RendezvousBlob));
  future.version = 2;
  const TcpSocket newer = connect_to(host.port());
  EXPECT_TRUE(newer.send_all(bytes_of(future), in_a_while()));
  EXPECT_THAT(expect_answer(newer, AnswerKind::kRefused), HasSubstr("version 2, this one has 1"));
  future.job += 1;
  const TcpSocket elsewhere = connect_to(host.port());
  EXPECT_TRUE(elsewhere.send_all(bytes_of(future), in_a_while()));
  EXPECT_THAT(expect_answer(elsewhere, AnswerKind::kElsewhere), HasSubstr("another job"));

  expect_met({meet(as_rank(options, 1)), host.finish()});
}

// Rank 1 serves, and rank 0 gives the blob.
TEST(RendezvousHost, BytesMayComeOneByOne) {
  const RendezvousOptions options = rendezvous_of(2);
  HostThread host(as_rank(options, 1));
  const TcpSocket socket = connect_to(host.port());
  const Hello hello = hello_of(options, sizeof(RendezvousBlob));
  const RendezvousBlob blob = rendezvous_blob();
  std::vector<std::byte> message(bytes_of(hello).begin(), bytes_of(hello).end());
  message.insert(message.end(), blob.begin(), blob.end());
  for (const std::byte& byte : message) {
    wait_until_all_is_heard(host.port());
    EXPECT_TRUE(socket.send_all(std::span(&byte, 1), in_a_while()));
  }
  expect_answer(socket, AnswerKind::kWelcome);
  expect_answer(socket, AnswerKind::kBlob);
  EXPECT_TRUE(socket.send_all(std::span(&kConfirmation, 1), in_a_while()));
  expect_answer(socket, AnswerKind::kDone);
  expect_met({host.finish()});
}

TEST(RendezvousHost, AFirstRankThatBreaksOffInItsBlobMayComeAgain) {
  const RendezvousOptions options = rendezvous_of(2);
  HostThread host(as_rank(options, 1));
  const RendezvousBlob other = rendezvous_blob(100);
  {
    const TcpSocket socket = say_hello_as(host.port(), options);
    EXPECT_TRUE(socket.send_all(std::span(other).first(100), in_a_while()));
    wait_until_all_is_heard(host.port());
  }
  RendezvousOptions first = options;
  first.local_rank = 1;  // it looks for the process that serves
  expect_met({meet(first), host.finish()});
}

TEST(RendezvousHost, ARankMayGoAndComeAgain) {
  const RendezvousOptions options = rendezvous_of(3);
  TestClock clock;
  HostThread host(options, &clock);
  TcpSocket gone = come_as(host.port(), as_rank(options, 2));
  // Rank 2 leaves and comes again between two looks of the host.
  clock.hold();
  const TcpSocket wakes_it = connect_to(host.port());
  clock.wait_until_held();
  gone.close();
  TcpSocket again = say_hello_as(host.port(), as_rank(options, 2));
  clock.release();
  expect_answer(again, AnswerKind::kWelcome);
  clock.let_time_pass();
  const TcpSocket wakes_it_again = connect_to(host.port());
  const std::string error = host.finish().error;
  EXPECT_THAT(error, HasSubstr("rank 1 did not join"));
  EXPECT_THAT(error, Not(HasSubstr("another process")));
}

// The older process may be left over from an attempt that has ended, but it is not known which
// attempt has.
TEST(RendezvousHost, OfTwoProcessesOfOneRankTheLaterStays) {
  RendezvousOptions options = rendezvous_of(3);
  HostThread host(options);
  options.attempt = 4;
  const TcpSocket older = come_as(host.port(), as_rank(options, 1));
  options.attempt = 2;
  Met later;
  std::jthread again([&] { later = meet(as_rank(options, 1)); });
  EXPECT_THAT(expect_answer(older, AnswerKind::kRefused),
              HasSubstr("another process has joined as rank 1 (attempt 2; this is attempt 4)"));
  const Met last = meet(as_rank(options, 2));
  again.join();
  expect_met({later, last, host.finish()});
}

TEST(RendezvousHost, ARankThatDoesNotConfirmIsNamedToAll) {
  const RendezvousOptions options = rendezvous_of(3);
  HostThread host(options);
  TcpSocket leaves = come_as(host.port(), as_rank(options, 2));
  std::jthread leaving([&] {
    expect_answer(leaves, AnswerKind::kBlob);
    leaves.close();
  });
  EXPECT_THAT(meet(as_rank(options, 1)).error, HasSubstr("rank 1: rank 2 left the rendezvous"));
  EXPECT_THAT(host.finish().error, HasSubstr("rank 2 left the rendezvous before it ended"));
}

TEST(RendezvousHost, WithoutAFreePortThereIsNone) {
  const RendezvousOptions options = rendezvous_of(2);
  std::vector<std::vector<TcpSocket>> taken;
  for (const int port : rendezvous_ports(options)) {
    taken.push_back(listen_on(port));
    ASSERT_FALSE(taken.back().empty()) << port;
  }
  RendezvousBlob blob{};
  EXPECT_THROW(share_from_first_rank(options, blob), EnvironmentError);
}

// The host's guests are told, and no one waits for ranks that cannot come any more.
TEST(RendezvousHost, AHostWithoutDescriptorsFailsAtOnce) {
  const RendezvousOptions options = rendezvous_of(3);
  HostThread host(options);
  const TcpSocket guest = come_as(host.port(), as_rank(options, 1));
  TcpSocket next(::socket(AF_INET, SOCK_STREAM, 0));
  rlimit usual = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit few = {256, usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<TcpSocket> taken;
  do {
    taken.emplace_back(::fcntl(next.descriptor(), F_DUPFD_CLOEXEC, 0));
  } while (taken.back().is_open());
  const TcpAddress local = at_port(resolve_tcp("127.0.0.1").addresses.front(), host.port());
  EXPECT_EQ(
      ::connect(next.descriptor(), reinterpret_cast<const sockaddr*>(&local.storage), local.size),
      0);
  EXPECT_THAT(expect_answer(guest, AnswerKind::kMissing), HasSubstr("rank 0, which hosts"));
  taken.clear();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_THAT(host.finish().error, HasSubstr("cannot accept a connection: Too many open files"));
}

}  // namespace
}  // namespace terrace
