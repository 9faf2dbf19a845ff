#include "parallel/rendezvous_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/hash.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

// The part of a head that every version has.
constexpr std::size_t kCommonBytes = offsetof(AnswerHead, bytes);

bool send_answer(const TcpSocket& socket, AnswerHead head, std::span<const std::byte> bytes,
                 TcpDeadline deadline) {
  bytes = bytes.first(std::min(bytes.size(), kRendezvousBlobMax));  // a long text is cut
  head.bytes = static_cast<std::uint32_t>(bytes.size());
  std::vector<std::byte> message(sizeof(head));
  std::memcpy(message.data(), &head, sizeof(head));
  message.insert(message.end(), bytes.begin(), bytes.end());
  return socket.send_all(message, deadline);
}

}  // namespace

Hello hello_of(const RendezvousOptions& options, std::size_t blob_bytes) {
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(options.rank);
  hello.size = static_cast<std::uint32_t>(options.size);
  hello.attempt = static_cast<std::uint32_t>(options.attempt);
  hello.blob_bytes = static_cast<std::uint32_t>(blob_bytes);
  const std::string job = fmt::format("{}\n{}", options.port, options.job);
  hello.job = hash_bytes(std::as_bytes(std::span(job)));
  return hello;
}

std::string Answer::text() const {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

AnswerReader::State AnswerReader::read(const TcpSocket& socket) {
  for (;;) {
    const State now = state();
    if (now != State::kPart) return now;
    const std::size_t known = received_.size();
    const std::size_t wanted =
        known < kCommonBytes
            ? kCommonBytes
            : sizeof(head_) + (known < sizeof(head_) ? 0 : std::size_t{head_.bytes});
    received_.resize(wanted);
    const std::optional<std::size_t> got = socket.receive_some(std::span(received_).subspan(known));
    received_.resize(known + got.value_or(0));
    if (!got.has_value()) return State::kNone;
    if (*got == 0) return State::kPart;
  }
}

AnswerReader::State AnswerReader::state() {
  std::copy_n(received_.begin(), std::min(received_.size(), sizeof(head_)),
              reinterpret_cast<std::byte*>(&head_));
  const std::size_t magic = std::min(received_.size(), head_.magic.size());
  if (std::memcmp(head_.magic.data(), kAnswerMagic.data(), magic) != 0) return State::kNone;
  if (received_.size() < kCommonBytes) return State::kPart;
  if (head_.version != kRendezvousVersion) return State::kWhole;
  if (head_.kind > AnswerKind::kDone) return State::kNone;
  if (received_.size() < sizeof(head_)) return State::kPart;
  if (head_.bytes > kRendezvousBlobMax) return State::kNone;
  return received_.size() < sizeof(head_) + head_.bytes ? State::kPart : State::kWhole;
}

Answer AnswerReader::take() {
  Answer answer;
  answer.version = head_.version;
  answer.kind = head_.kind;
  if (head_.version == kRendezvousVersion) {
    answer.left = std::chrono::milliseconds(head_.milliseconds_left);
    answer.bytes.assign(received_.begin() + sizeof(head_), received_.end());
  }
  received_.clear();
  return answer;
}

bool send_welcome(const TcpSocket& socket, std::chrono::milliseconds left, TcpDeadline deadline) {
  AnswerHead head;
  head.kind = AnswerKind::kWelcome;
  head.milliseconds_left = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(left.count(), 0, std::numeric_limits<std::uint32_t>::max()));
  return send_answer(socket, head, {}, deadline);
}

bool send_answer(const TcpSocket& socket, AnswerKind kind, std::span<const std::byte> bytes,
                 TcpDeadline deadline) {
  AnswerHead head;
  head.kind = kind;
  return send_answer(socket, head, bytes, deadline);
}

bool send_answer(const TcpSocket& socket, AnswerKind kind, std::string_view text,
                 TcpDeadline deadline) {
  return send_answer(socket, kind, std::as_bytes(std::span(text)), deadline);
}

std::optional<Answer> receive_answer(const TcpSocket& socket, TcpDeadline deadline) {
  AnswerReader reader;
  for (;;) {
    const AnswerReader::State state = reader.read(socket);
    if (state == AnswerReader::State::kWhole) return reader.take();
    if (state == AnswerReader::State::kNone) return std::nullopt;
    if (!socket.wait_to_receive(deadline)) return std::nullopt;
  }
}

}  // namespace terrace
