#include "parallel/sockets/message_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "parallel/sockets/shared_window.h"

namespace terrace {
namespace {

std::pair<TcpSocket, TcpSocket> connected_sockets() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {TcpSocket(ends[0]), TcpSocket(ends[1])};
}

class MessageStreamTest : public testing::Test {
 protected:
  MessageStreamTest() {
    auto [a, b] = connected_sockets();
    first_ = std::make_unique<MessageStream>(std::move(a));
    second_ = std::make_unique<MessageStream>(std::move(b));
  }

  static std::span<const std::byte> bytes_in(std::string_view text) {
    return std::as_bytes(std::span(text));
  }
  static std::span<std::byte> bytes_in(std::string& text) {
    return std::as_writable_bytes(std::span(text));
  }
  // Lets both sides make progress as often as any test needs.
  void make_progress() {
    for (int i = 0; i < 20'000 && (first_->has_work() || second_->has_work()); ++i) {
      first_->make_progress();
      second_->make_progress();
    }
  }

  std::unique_ptr<MessageStream> first_;
  std::unique_ptr<MessageStream> second_;
};

TEST_F(MessageStreamTest, CarriesMessagesOfAllSizesBothWays) {
  const std::string large(5 * kMiB + 3, 'x');
  std::string received(large.size(), ' ');
  std::string small(2, ' ');
  std::string none;
  std::string back(large.size(), ' ');
  first_->send(MessageSet::kEvenRounds, MessageTag::kPiece, bytes_in(std::string_view(large)));
  first_->send(MessageSet::kOddRounds, MessageTag::kPiece, bytes_in("ab"));
  first_->send(MessageSet::kCall, MessageTag::kPairData, {});
  second_->send(MessageSet::kCall, MessageTag::kPiece, bytes_in(std::string_view(large)));
  second_->receive(MessageSet::kCall, MessageTag::kPiece, bytes_in(received));
  second_->receive(MessageSet::kCall, MessageTag::kPiece, bytes_in(small));
  second_->receive(MessageSet::kCall, MessageTag::kPairData, bytes_in(none));
  first_->receive(MessageSet::kCall, MessageTag::kPiece, bytes_in(back));
  EXPECT_EQ(second_->pending_receives(MessageSet::kCall), 3);
  EXPECT_EQ(second_->pending(MessageSet::kCall), 4);
  make_progress();
  EXPECT_FALSE(first_->has_work());
  EXPECT_FALSE(second_->has_work());
  EXPECT_EQ(received, large);
  EXPECT_EQ(small, "ab");
  EXPECT_EQ(back, large);
}

TEST_F(MessageStreamTest, AMessageWaitsForItsReceive) {
  std::string piece(1, ' ');
  std::string call(1, ' ');
  first_->send(MessageSet::kCall, MessageTag::kCall, bytes_in("c"));
  second_->receive(MessageSet::kEvenRounds, MessageTag::kPiece, bytes_in(piece));
  make_progress();
  EXPECT_FALSE(first_->has_work());
  EXPECT_EQ(second_->pending(MessageSet::kEvenRounds), 1);
  second_->receive(MessageSet::kCall, MessageTag::kCall, bytes_in(call));
  first_->send(MessageSet::kCall, MessageTag::kPiece, bytes_in("p"));
  make_progress();
  EXPECT_EQ(call + piece, "cp");
  EXPECT_FALSE(second_->has_work());
}

TEST_F(MessageStreamTest, APairCallHasLeftWhenItWasReceived) {
  std::string call(4, ' ');
  first_->send(MessageSet::kCall, MessageTag::kPairCall, bytes_in("call"));
  make_progress();
  EXPECT_EQ(first_->pending(MessageSet::kCall), 1);
  EXPECT_EQ(first_->pending_receives(MessageSet::kCall), 0);
  second_->receive(MessageSet::kCall, MessageTag::kPairCall, bytes_in(call));
  make_progress();
  EXPECT_FALSE(first_->has_work());
  EXPECT_FALSE(second_->has_work());
  EXPECT_EQ(call, "call");
}

TEST_F(MessageStreamTest, AMessageOfAnotherSizeIsAnError) {
  std::string wrong(3, ' ');
  first_->send(MessageSet::kCall, MessageTag::kCall, bytes_in("call"));
  second_->receive(MessageSet::kCall, MessageTag::kCall, bytes_in(wrong));
  try {
    make_progress();
    ADD_FAILURE() << "no CommError";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("4 bytes, but 3 were expected"));
  }
}

TEST_F(MessageStreamTest, KnowsThatTheOtherSideHasLeft) {
  std::string call(4, ' ');
  first_->send(MessageSet::kCall, MessageTag::kCall, bytes_in("call"));
  first_->make_progress();
  second_->receive(MessageSet::kCall, MessageTag::kCall, bytes_in(call));
  second_->receive(MessageSet::kCall, MessageTag::kCall, bytes_in(call));
  first_.reset();
  second_->make_progress();
  EXPECT_EQ(call, "call");
  EXPECT_TRUE(second_->is_closed());
  EXPECT_EQ(second_->pending(MessageSet::kCall), 1);
  second_->drop();
  EXPECT_FALSE(second_->has_work());
}

TEST(SharedWindowTest, IsTheSameMemoryForBothSides) {
  const auto [a, b] = connected_sockets();
  constexpr std::size_t kBytes = 3 * 4096 + 64;
  SharedWindow made(kBytes);
  ASSERT_TRUE(made.give(a));
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const SharedWindow taken = SharedWindow::take(b, kBytes, soon);
  made.end_giving();
  ASSERT_EQ(taken.bytes().size(), kBytes);
  EXPECT_NE(taken.bytes().data(), made.bytes().data());
  EXPECT_EQ(taken.bytes().back(), std::byte{0});
  made.bytes().back() = std::byte{7};
  EXPECT_EQ(taken.bytes().back(), std::byte{7});
  taken.bytes().front() = std::byte{9};
  EXPECT_EQ(made.bytes().front(), std::byte{9});
}

TEST(SharedWindowTest, NoneComesFromAProcessThatHasLeft) {
  auto [a, b] = connected_sockets();
  a.close();
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  EXPECT_TRUE(SharedWindow::take(b, 4096, soon).bytes().empty());
}

}  // namespace
}  // namespace terrace
