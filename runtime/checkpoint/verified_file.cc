#include "runtime/checkpoint/verified_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace terrace {

PieceCache::Entry* PieceCache::find(std::uint64_t file, std::size_t index) {
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.file == file && entry.index == index; });
  return found == entries_.end() ? nullptr : &*found;
}

void PieceCache::forget_oldest() {
  while (entries_.size() > pieces_max_) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->bytes == nullptr) continue;
      if (oldest == entries_.end() || entry->used_at < oldest->used_at) oldest = entry;
    }
    if (oldest == entries_.end()) return;
    entries_.erase(oldest);
  }
}

PieceCache::Bytes PieceCache::get(std::uint64_t file, std::size_t index,
                                  FunctionRef<std::vector<std::byte>()> load) {
  std::unique_lock lock(mutex_);
  const std::uint64_t call = ++calls_;
  for (Entry* entry = find(file, index); entry != nullptr; entry = find(file, index)) {
    if (entry->bytes != nullptr) {
      entry->used_at = call;
      return entry->bytes;
    }
    changed_.wait(lock);
  }
  entries_.push_back({file, index, nullptr, call});
  lock.unlock();
  Bytes bytes;
  try {
    bytes = std::make_shared<const std::vector<std::byte>>(load());
  } catch (...) {
    lock.lock();
    entries_.erase(entries_.begin() + (find(file, index) - entries_.data()));
    changed_.notify_all();
    throw;
  }
  lock.lock();
  find(file, index)->bytes = bytes;
  forget_oldest();
  changed_.notify_all();
  return bytes;
}

VerifiedFile::VerifiedFile(std::unique_ptr<OpenFile> upstream, std::string path, FileHashes hashes,
                           PieceCache& cache, std::string remedy)
    : upstream_(std::move(upstream)),
      path_(std::move(path)),
      remedy_(std::move(remedy)),
      hashes_(std::move(hashes)),
      cache_(cache),
      number_(cache.new_file()) {
  const PieceHashes& pieces = hashes_.pieces;
  TERRACE_CHECK_EQ(pieces.hashes.size(),
                   PieceHashes::count(pieces.header_bytes, pieces.piece_bytes, hashes_.size_bytes));
}

std::int64_t VerifiedFile::read_at(std::span<std::byte> out, std::uint64_t offset) {
  if (out.empty() || offset >= hashes_.size_bytes) return 0;
  const PieceHashes::Piece piece = hashes_.pieces.at(offset, hashes_.size_bytes);
  const PieceCache::Bytes bytes = cache_.get(number_, piece.index, [&] { return load(piece); });
  const std::size_t count = std::min<std::size_t>(out.size(), piece.end - offset);
  std::copy_n(bytes->begin() + static_cast<std::ptrdiff_t>(offset - piece.begin), count,
              out.begin());
  return static_cast<std::int64_t>(count);
}

std::vector<std::byte> VerifiedFile::load(const PieceHashes::Piece& piece) {
  std::vector<std::byte> bytes(piece.end - piece.begin);
  read_fully(*upstream_, path_, piece.begin, bytes);
  const std::uint64_t hash = hash_bytes(bytes);
  const std::uint64_t written = hashes_.pieces.hashes[piece.index];
  if (hash == written) return bytes;
  throw CorruptData(
      fmt::format("{}: the {} bytes at offset {} have checksum {:016x}, but the bytes that were "
                  "written had {:016x}",
                  path_, bytes.size(), piece.begin, hash, written),
      remedy_);
}

}  // namespace terrace
