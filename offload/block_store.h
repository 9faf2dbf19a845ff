#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

// The seam to NVMe: extents of fixed size that are read and written asynchronously. Real: files, by
// io_uring or by threads with pread/pwrite. Fake: memory; faulty. All pass one conformance suite.
namespace terrace {

struct ExtentId {
  std::uint32_t index = 0;
  friend bool operator==(ExtentId, ExtentId) = default;
};

// How a request ended: a value, handed to the completion.
struct IoOutcome {
  enum class Kind : std::uint8_t { kDone, kFailed, kCorrupt };
  Kind kind = Kind::kDone;
  IoError::Where where;  // for kFailed and kCorrupt: operation, path, offset, size, errno

  // Throws IoError or CorruptData, naming file, offset and length.
  void throw_if_failed() const;
};

class IoCompletion {
 public:
  virtual ~IoCompletion() = default;
  // Called exactly once per request, on a thread of the store; must be quick. It may submit where
  // it is known that submit() will not block.
  virtual void done(const IoOutcome& outcome) noexcept = 0;
};

// The grain of checksums, from the start of each extent.
inline constexpr std::size_t kChecksumBytes = 16 * kKiB;

struct IoRequest {
  enum class Direction : std::uint8_t { kRead, kWrite };
  // By the store: before a write starts and before a read ends. By the caller, who has the bytes in
  // a cache when it works on them: take_checksums() before the write, compare_checksums() of all
  // that was read before it is believed.
  enum class Checksums : std::uint8_t { kByStore, kByCaller };
  Direction direction = Direction::kRead;
  Checksums checksums = Checksums::kByStore;
  ExtentId extent;
  std::size_t offset = 0;  // within the extent, a multiple of the block size
  // Address aligned to alignment(). The size is a whole number of blocks, or reaches exactly to the
  // extent's size rounded up to alignment(): what lies behind the extent's size is carried too.
  std::span<std::byte> memory;
  IoCompletion* completion = nullptr;  // outlives the request
};

// What a store is made of, for the console, the doctor and run.json.
struct StorePath {
  std::string directory;
  std::string engine;  // "io_uring", "posix", "memory"
  bool direct_io = false;
  bool registered_buffers = false;
  std::string remark;  // why it is not the engine that was asked for; empty otherwise
  int depth = 0;       // blocks in flight on its drive; 0: not known
  // What the extents take of it: of what is written, as large a share goes there.
  std::uint64_t used_bytes = 0;
};

// Extents are made first, then prepare() once, then requests. A write that overlaps a
// request in flight is the caller's error; reads may overlap. submit() may be called by several
// threads. The destructor drains.
class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // Before prepare(). `size_bytes` is positive; the store rounds up to its alignment by itself.
  virtual ExtentId create_extent(std::size_t size_bytes) = 0;
  // Checks free space and preallocates the files. Throws OutOfMemory naming the directory, what is
  // free and what is needed; leaves nothing behind when it throws, and the store is then only
  // destroyed.
  virtual void prepare() = 0;
  // Tells the store which memory requests will use, so that it may register it. After prepare(),
  // before requests. Optional. The memory then stays where it is until an empty span ends all of
  // it.
  virtual void register_memory(std::span<std::byte> memory) = 0;
  // Takes a request. Reads start in the order of the calls, and so do writes; the two take turns.
  // Blocks only while as many blocks wait as a drive needs some tenths of a second for (1024 each).
  // Throws nothing for what the device does: that is the outcome.
  virtual void submit(const IoRequest& request) = 0;
  // Makes a part of an extent read as zeros until it is written, without a transfer. Offset and
  // size are as those of a request; none for these bytes is in flight.
  virtual void set_zero(ExtentId extent, std::size_t offset, std::size_t size_bytes) = 0;
  // Of bytes from `offset` of the extent on, a multiple of kChecksumBytes, as they are in memory;
  // they end at another multiple or at the extent's end, rounded up to alignment(). By any thread,
  // different parts of an extent by several at once, and beside requests for other extents.
  //
  // What the next write brings to the extent, with Checksums::kByCaller.
  virtual void take_checksums(ExtentId extent, std::size_t offset,
                              std::span<const std::byte> bytes) = 0;
  // Whether they are what was last taken: kDone, or kCorrupt of the first that differ.
  virtual IoOutcome compare_checksums(ExtentId extent, std::size_t offset,
                                      std::span<const std::byte> bytes) const = 0;
  // Blocks until nothing is in flight and every completion has returned.
  virtual void drain() = 0;

  // Alignment of memory addresses and of request sizes in the middle of an extent.
  virtual std::size_t alignment() const = 0;
  // The grain of partial requests: a power of two; in real stores 1 MiB, or what the drive was
  // measured to do best.
  virtual std::size_t block_bytes() const = 0;
  virtual std::size_t used_bytes() const = 0;
  virtual std::vector<StorePath> paths() const = 0;
};

}  // namespace terrace
