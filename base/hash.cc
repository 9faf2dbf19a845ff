#include "base/hash.h"

#include <xxhash.h>

#include <algorithm>

// Chooses AVX2 or AVX-512 at run time: up to three times the speed of the portable build, and the
// same bits.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#include "base/check.h"

namespace terrace {
namespace {

// Of much that comes from memory, pieces are hashed while those behind them are fetched into the
// second-level cache: XXH3 itself looks ahead half a KiB, which hides a part of the way from
// memory.
constexpr std::size_t kPiece = 4096;
constexpr std::size_t kAhead = 2 * kPiece;
constexpr std::size_t kMuch = 16 * kPiece;

void fetch(std::span<const std::byte> bytes) {
  constexpr std::size_t kLine = 64;
  constexpr int kToRead = 0;
  constexpr int kSecondLevel = 2;
  for (std::size_t at = 0; at < bytes.size(); at += kLine) {
    __builtin_prefetch(bytes.data() + at, kToRead, kSecondLevel);
  }
}

void add_pieces(XXH3_state_t* state, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::size_t ahead = std::min(at + kAhead, bytes.size());
    fetch(bytes.subspan(ahead, std::min(kPiece, bytes.size() - ahead)));
    XXH3_64bits_update(state, bytes.data() + at, std::min(kPiece, bytes.size() - at));
  }
}

}  // namespace

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  if (bytes.size() < kMuch) return XXH3_64bits(bytes.data(), bytes.size());
  thread_local StreamingHash hash;  // a step allocates nothing
  hash.reset();
  hash.add(bytes);
  return hash.value();
}

StreamingHash::StreamingHash() : state_(XXH3_createState()) {
  TERRACE_CHECK(state_ != nullptr);
  reset();
}

StreamingHash::~StreamingHash() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void StreamingHash::reset() { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }

void StreamingHash::add(std::span<const std::byte> bytes) {
  add_pieces(static_cast<XXH3_state_t*>(state_), bytes);
}

std::uint64_t StreamingHash::value() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

}  // namespace terrace
