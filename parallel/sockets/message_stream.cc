#include "parallel/sockets/message_stream.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

constexpr std::uint32_t kConfirmation = 0;

// More than a communicator ever has posted between two ranks.
constexpr std::size_t kMessages = 16;

// The transfers in one direction before the other ranks have their turn.
constexpr int kTransfersMax = 8;

template <typename Messages>
int count_in(const Messages& messages, MessageSet set) {
  return static_cast<int>(
      std::ranges::count(messages, set, [](const auto& message) { return message.set; }));
}

}  // namespace

MessageStream::MessageStream(TcpSocket socket) : socket_(std::move(socket)) {
  sends_.reserve(kMessages);
  unconfirmed_.reserve(kMessages);
  receives_.reserve(kMessages);
}

void MessageStream::send(MessageSet set, MessageTag tag, std::span<const std::byte> bytes) {
  sends_.push_back({set, static_cast<std::uint32_t>(tag), bytes});
}

void MessageStream::receive(MessageSet set, MessageTag tag, std::span<std::byte> bytes) {
  receives_.push_back({set, static_cast<std::uint32_t>(tag), bytes});
}

void MessageStream::make_progress() {
  if (is_dropped_) return;
  receive_some();
  send_some();
}

int MessageStream::pending(MessageSet set) const {
  return count_in(sends_, set) + pending_receives(set) +
         static_cast<int>(std::ranges::count(unconfirmed_, set));
}

int MessageStream::pending_receives(MessageSet set) const { return count_in(receives_, set); }

void MessageStream::drop() {
  is_dropped_ = true;
  sends_.clear();
  unconfirmed_.clear();
  receives_.clear();
}

void MessageStream::send_some() {
  for (int i = 0; i < kTransfersMax && !sends_.empty(); ++i) {
    const Outgoing& message = sends_.front();
    Head head = {.tag = message.tag, .bytes = message.bytes.size()};
    const auto head_bytes = std::as_writable_bytes(std::span(&head, 1));
    const std::size_t of_head = std::min(sent_, sizeof(Head));
    const std::size_t of_bytes = sent_ - of_head;
    std::array<iovec, 2> parts = {
        iovec{.iov_base = head_bytes.data() + of_head, .iov_len = sizeof(Head) - of_head},
        iovec{.iov_base = const_cast<std::byte*>(message.bytes.data() + of_bytes),
              .iov_len = message.bytes.size() - of_bytes}};
    msghdr request = {};
    request.msg_iov = parts.data();
    request.msg_iovlen = parts.size();
    const ssize_t sent = ::sendmsg(socket_.descriptor(), &request, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      is_closed_ = is_closed_ || (errno != EAGAIN && errno != EWOULDBLOCK);
      return;
    }
    sent_ += static_cast<std::size_t>(sent);
    if (sent_ < sizeof(Head) + message.bytes.size()) continue;
    if (message.tag == static_cast<std::uint32_t>(MessageTag::kPairCall)) {
      unconfirmed_.push_back(message.set);
    }
    sends_.erase(sends_.begin());
    sent_ = 0;
  }
}

bool MessageStream::fill(std::span<std::byte> part, std::size_t& received) {
  while (received < part.size()) {
    const std::optional<std::size_t> got = socket_.receive_some(part.subspan(received));
    is_closed_ = is_closed_ || !got.has_value();
    if (got.value_or(0) == 0) return false;
    received += *got;
  }
  return true;
}

void MessageStream::receive_some() {
  for (int i = 0; i < kTransfersMax; ++i) {
    if (receives_.empty() && unconfirmed_.empty()) return;
    if (!fill(std::as_writable_bytes(std::span(&head_, 1)), head_received_)) return;
    if (head_.tag == kConfirmation) {
      if (unconfirmed_.empty()) throw CommError("a message was confirmed that was not sent", "");
      unconfirmed_.erase(unconfirmed_.begin());
      head_received_ = 0;
      continue;
    }
    if (place_ < 0 && !find_receive()) return;
    if (!fill(receives_[static_cast<std::size_t>(place_)].bytes, received_)) return;
    end_message();
  }
}

bool MessageStream::find_receive() {
  const auto found = std::ranges::find(receives_, head_.tag, &Incoming::tag);
  if (found == receives_.end()) return false;
  if (found->bytes.size() != head_.bytes) {
    throw CommError(fmt::format("a message has {} bytes, but {} were expected", head_.bytes,
                                found->bytes.size()),
                    "");
  }
  place_ = found - receives_.begin();
  return true;
}

void MessageStream::end_message() {
  const auto done = receives_.begin() + place_;
  // The confirmation belongs to the set of the receive, so that it has left when that is done.
  if (done->tag == static_cast<std::uint32_t>(MessageTag::kPairCall)) {
    sends_.push_back({done->set, kConfirmation, {}});
  }
  receives_.erase(done);
  head_received_ = received_ = 0;
  place_ = -1;
}

}  // namespace terrace
