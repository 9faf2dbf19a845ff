#include "parallel/rendezvous_message.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/hash.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

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

bool send_answer(const TcpSocket& socket, AnswerKind kind, std::span<const std::byte> bytes,
                 TcpDeadline deadline) {
  AnswerHead head;
  head.kind = kind;
  head.bytes = static_cast<std::uint32_t>(bytes.size());
  std::vector<std::byte> message(sizeof(head));
  std::memcpy(message.data(), &head, sizeof(head));
  message.insert(message.end(), bytes.begin(), bytes.end());
  return socket.send_all(message, deadline);
}

bool send_answer(const TcpSocket& socket, AnswerKind kind, std::string_view text,
                 TcpDeadline deadline) {
  return send_answer(socket, kind, std::as_bytes(std::span(text)), deadline);
}

std::optional<Answer> receive_answer(const TcpSocket& socket, TcpDeadline deadline) {
  AnswerHead head;
  if (!socket.receive_all(std::as_writable_bytes(std::span(&head, 1)), deadline)) {
    return std::nullopt;
  }
  const bool is_known = head.magic == kRendezvousMagic && head.kind <= AnswerKind::kMissing &&
                        head.bytes <= kRendezvousBlobMax;
  if (!is_known) return std::nullopt;
  Answer answer{head.kind, std::vector<std::byte>(head.bytes)};
  if (!socket.receive_all(answer.bytes, deadline)) return std::nullopt;
  return answer;
}

}  // namespace terrace
