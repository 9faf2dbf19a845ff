#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/rendezvous.h"
#include "parallel/tcp_socket.h"

// What is said at a rendezvous. A guest says hello, and, if it is rank 0, gives the blob; the host
// answers at once whether it is the right place, and again when all have come. The guest confirms
// with one byte. Numbers are little-endian.
namespace terrace {

inline constexpr std::uint32_t kRendezvousVersion = 1;
inline constexpr std::array<char, 8> kRendezvousMagic = {'T', 'E', 'R', 'R', 'A', 'C', 'E', '\n'};
inline constexpr std::byte kConfirmation{0x06};

struct Hello {
  std::array<char, 8> magic = kRendezvousMagic;
  std::uint32_t version = kRendezvousVersion;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t attempt = 0;
  std::uint32_t blob_bytes = 0;
  std::uint32_t reserved = 0;
  std::uint64_t job = 0;  // a hash
};
static_assert(sizeof(Hello) == 40);

Hello hello_of(const RendezvousOptions& options, std::size_t blob_bytes);

enum class AnswerKind : std::uint32_t {
  kWelcome,    // this is the place: wait
  kElsewhere,  // another job's, or another attempt's: look on. With a text
  kRefused,    // this rank can never be let in. With a text
  kBlob,       // all are here. With the blob
  kMissing,    // not all have come. With a text
};

struct AnswerHead {
  std::array<char, 8> magic = kRendezvousMagic;
  std::uint32_t version = kRendezvousVersion;
  AnswerKind kind = AnswerKind::kWelcome;
  std::uint32_t bytes = 0;  // that follow
  std::uint32_t reserved = 0;
};
static_assert(sizeof(AnswerHead) == 24);

struct Answer {
  AnswerKind kind = AnswerKind::kWelcome;
  std::vector<std::byte> bytes;

  std::string text() const;
};

bool send_answer(const TcpSocket& socket, AnswerKind kind, std::span<const std::byte> bytes,
                 TcpDeadline deadline);
bool send_answer(const TcpSocket& socket, AnswerKind kind, std::string_view text,
                 TcpDeadline deadline);
// Nothing where none comes before the deadline, or something that is none.
std::optional<Answer> receive_answer(const TcpSocket& socket, TcpDeadline deadline);

}  // namespace terrace
