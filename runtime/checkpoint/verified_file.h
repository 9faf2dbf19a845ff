#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "runtime/checkpoint/file_hashes.h"
#include "runtime/checkpoint/file_system.h"

namespace terrace {

// The advice where a file of a checkpoint is not as it was written.
inline constexpr const char* kEarlierCheckpointRemedy = "resume from an earlier checkpoint";

// A cache of the pieces of files that were read last, verified. Keeps `pieces_max` pieces, and in
// addition the pieces that are being read: at most one for each reading thread. Thread-safe.
class PieceCache {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  explicit PieceCache(std::size_t pieces_max) : pieces_max_(pieces_max) {}

  // Returns a file's piece, from `load` where it is not cached. If several threads want the same
  // piece, one loads it and the others wait. Throws what `load` throws; then the piece is not kept.
  Bytes get(std::uint64_t file, std::size_t index, FunctionRef<std::vector<std::byte>()> load);

  // Returns a number by which the cache knows a file; it is never given again.
  std::uint64_t new_file() { return ++files_; }

 private:
  struct Entry {
    std::uint64_t file = 0;
    std::size_t index = 0;
    Bytes bytes;                // null while it is loaded
    std::uint64_t used_at = 0;  // the number of the last call that asked for it
  };

  Entry* find(std::uint64_t file, std::size_t index);
  void forget_oldest();

  const std::size_t pieces_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;  // guarded by mutex_, as is
  std::uint64_t calls_ = 0;
  std::atomic<std::uint64_t> files_{0};
};

// A file that gives out only bytes that are as they were written: reads fetch whole pieces, compare
// them with their checksums and copy out of them. Reads are thread-safe.
class VerifiedFile final : public OpenFile {
 public:
  // `path` and `remedy` are for messages. The file has the size that `hashes` tells. The cache
  // outlives this.
  VerifiedFile(std::unique_ptr<OpenFile> upstream, std::string path, FileHashes hashes,
               PieceCache& cache, std::string remedy = kEarlierCheckpointRemedy);

  // Reads up to the end of a piece. Throws CorruptData, which names file, offset and length, for a
  // piece that is not as it was written; IoError.
  std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) override;
  // The other calls go to the file itself.
  std::int64_t append(std::span<const std::byte> bytes) override {
    return upstream_->append(bytes);
  }
  std::int64_t size() override { return upstream_->size(); }
  int sync() override { return upstream_->sync(); }
  int close() override { return upstream_->close(); }

 private:
  std::vector<std::byte> load(const PieceHashes::Piece& piece);

  std::unique_ptr<OpenFile> upstream_;
  const std::string path_;
  const std::string remedy_;
  const FileHashes hashes_;
  PieceCache& cache_;
  const std::uint64_t number_;  // of cache_
};

}  // namespace terrace
