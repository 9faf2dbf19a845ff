#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/rendezvous.h"
#include "parallel/tcp_socket.h"

// The messages of a rendezvous. A guest says hello and, if it is rank 0, gives the blob. The host
// answers at once whether this is the right place, and again when all have come. The guest confirms
// with one byte, and the host says when all have confirmed. Numbers are little-endian. In every
// version the magic numbers, versions, jobs and kinds stand in the same places.
namespace terrace {

inline constexpr std::uint32_t kRendezvousVersion = 1;
// The two differ, so that no one takes an echo for an answer.
inline constexpr std::array<char, 8> kHelloMagic = {'T', 'E', 'R', 'R', 'A', 'C', 'E', '?'};
inline constexpr std::array<char, 8> kAnswerMagic = {'T', 'E', 'R', 'R', 'A', 'C', 'E', '!'};
inline constexpr std::byte kConfirmation{0x06};

struct Hello {
  std::array<char, 8> magic = kHelloMagic;
  std::uint64_t job = 0;  // a hash
  std::uint32_t version = kRendezvousVersion;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t attempt = 0;
  std::uint32_t blob_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 40);

Hello hello_of(const RendezvousOptions& options, std::size_t blob_bytes);

enum class AnswerKind : std::uint32_t {
  kWelcome,    // this is the place: wait
  kElsewhere,  // another job's: look further. With a text
  kRefused,    // this rank can never be let in. With a text
  kBlob,       // all are here. With the blob
  kMissing,    // some have not come, or do not have the blob. With a text
  kDone,       // all have the blob
};

struct AnswerHead {
  std::array<char, 8> magic = kAnswerMagic;
  std::uint32_t version = kRendezvousVersion;
  AnswerKind kind = AnswerKind::kWelcome;
  std::uint32_t bytes = 0;              // of the content that follows
  std::uint32_t milliseconds_left = 0;  // in a welcome: until the host stops waiting
};
static_assert(sizeof(AnswerHead) == 24);

struct Answer {
  std::uint32_t version = kRendezvousVersion;  // of another version only the kind is known
  AnswerKind kind = AnswerKind::kWelcome;
  std::chrono::milliseconds left{0};
  std::vector<std::byte> bytes;

  std::string text() const;
};

// Reads an answer that may come byte by byte. Takes none of the bytes after it.
class AnswerReader {
 public:
  enum class State : std::uint8_t {
    kPart,
    kWhole,
    kNone,  // the other side has hung up, or sent something else
  };

  // Reads the bytes that have arrived.
  State read(const TcpSocket& socket);
  // Returns the answer. Called once it is whole.
  Answer take();

 private:
  State state();

  AnswerHead head_;
  std::vector<std::byte> received_;
};

bool send_welcome(const TcpSocket& socket, std::chrono::milliseconds left, TcpDeadline deadline);
bool send_answer(const TcpSocket& socket, AnswerKind kind, std::span<const std::byte> bytes,
                 TcpDeadline deadline);
bool send_answer(const TcpSocket& socket, AnswerKind kind, std::string_view text,
                 TcpDeadline deadline);
// Returns nothing where no answer comes before the deadline, or the bytes are not an answer.
std::optional<Answer> receive_answer(const TcpSocket& socket, TcpDeadline deadline);

}  // namespace terrace
