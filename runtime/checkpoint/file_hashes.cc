#include "runtime/checkpoint/file_hashes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace terrace {

PieceHashes::Piece PieceHashes::at(std::uint64_t offset, std::uint64_t size_bytes) const {
  TERRACE_CHECK_LT(offset, size_bytes);
  if (offset < header_bytes) return {0, 0, header_bytes};
  const std::uint64_t number = (offset - header_bytes) / piece_bytes;
  const std::uint64_t begin = header_bytes + number * piece_bytes;
  return {static_cast<std::size_t>(number) + 1, begin, std::min(begin + piece_bytes, size_bytes)};
}

std::uint64_t PieceHashes::count(std::uint64_t header_bytes, std::uint64_t piece_bytes,
                                 std::uint64_t size_bytes) {
  return 1 + (size_bytes - header_bytes + piece_bytes - 1) / piece_bytes;
}

void FileHasher::end_header() {
  TERRACE_CHECK(in_header_);
  result_.pieces.header_bytes = result_.size_bytes;
  end_piece();
  in_header_ = false;
}

void FileHasher::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t room =
        in_header_ ? std::numeric_limits<std::uint64_t>::max() : kHashPieceBytes - in_piece_;
    const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), room));
    if (!piece_.has_value()) piece_.emplace();
    whole_.add(part);
    piece_->add(part);
    in_piece_ += part.size();
    result_.size_bytes += part.size();
    if (part.size() == room) end_piece();
    bytes = bytes.subspan(part.size());
  }
}

void FileHasher::end_piece() {
  result_.pieces.hashes.push_back(piece_.has_value() ? piece_->value() : hash_bytes({}));
  piece_.reset();
  in_piece_ = 0;
}

FileHashes FileHasher::finish() {
  TERRACE_CHECK(!in_header_);
  if (in_piece_ > 0) end_piece();
  result_.hash = whole_.value();
  return std::exchange(result_, {});
}

}  // namespace terrace
