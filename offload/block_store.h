#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

// The interface to NVMe: extents of fixed size that are read and written asynchronously. The real
// stores are files, accessed by io_uring or by threads with pread/pwrite. The fakes are memory, and
// memory with faults. All pass one conformance suite.
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
  // Called exactly once per request, on a thread of the store; must be quick. It may submit if it
  // is known that submit() will not block.
  virtual void done(const IoOutcome& outcome) noexcept = 0;
};

// The number of bytes that share one checksum, counted from the start of each extent.
inline constexpr std::size_t kChecksumBytes = 16 * kKiB;

struct IoRequest {
  enum class Direction : std::uint8_t { kRead, kWrite };
  // kByStore: the store takes checksums before a write starts and compares them before a read ends.
  // kByCaller: the caller does so while it has the bytes in a cache anyway. It calls
  // take_checksums() before the write, and compare_checksums() on all bytes read before it relies
  // on them.
  enum class Checksums : std::uint8_t { kByStore, kByCaller };
  Direction direction = Direction::kRead;
  Checksums checksums = Checksums::kByStore;
  ExtentId extent;
  std::size_t offset = 0;  // within the extent, a multiple of the block size
  // The address is aligned to alignment(). The size is a whole number of blocks, or reaches exactly
  // to the extent's size rounded up to alignment(): the bytes after the extent's size are
  // transferred too.
  std::span<std::byte> memory;
  IoCompletion* completion = nullptr;  // outlives the request
};

// One directory of a store and how it is accessed, for the console, the doctor and run.json.
struct StorePath {
  std::string directory;
  std::string engine;  // "io_uring", "posix", "memory"
  bool direct_io = false;
  bool registered_buffers = false;
  std::string remark;  // why it is not the requested engine; empty otherwise
  int depth = 0;       // blocks in flight on its drive; 0: not known
  // The bytes that extents use on it. Written data goes there in proportion.
  std::uint64_t used_bytes = 0;
};

// Extents are made first, then prepare() is called once, then come the requests. A write that
// overlaps a request in flight is the caller's error; reads may overlap. submit() may be called by
// several threads. The destructor drains.
class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // Called before prepare(). `size_bytes` is positive; the store rounds it up to its alignment by
  // itself.
  virtual ExtentId create_extent(std::size_t size_bytes) = 0;
  // Checks free space and preallocates the files. Throws OutOfMemory naming the directory, the free
  // bytes and the needed bytes. When it throws, it leaves nothing behind, and the store may then
  // only be destroyed.
  virtual void prepare() = 0;
  // Tells the store which memory requests will use, so that it may register it. Optional; called
  // after prepare() and before requests. The memory must then stay where it is until an empty span
  // ends all registrations.
  virtual void register_memory(std::span<std::byte> memory) = 0;
  // Takes a request. Reads start in the order of the calls, and so do writes; the two take turns.
  // Blocks only while as many blocks wait as a drive needs some tenths of a second for (1024 each).
  // Throws nothing for errors of the device: those are outcomes.
  virtual void submit(const IoRequest& request) = 0;
  // Makes a part of an extent read as zeros until it is written, without a transfer. Offset and
  // size follow the same rules as a request's. No request for these bytes is in flight.
  virtual void set_zero(ExtentId extent, std::size_t offset, std::size_t size_bytes) = 0;
  // The next two calls work on bytes as they are in memory, from `offset` of the extent on, a
  // multiple of kChecksumBytes. The bytes end at another multiple, or at the extent's end rounded
  // up to alignment(). Any thread may call them; several threads at once for different parts of an
  // extent, and beside requests for other extents.
  //
  // Takes the checksums of the bytes that the next write, with Checksums::kByCaller, brings to the
  // extent.
  virtual void take_checksums(ExtentId extent, std::size_t offset,
                              std::span<const std::byte> bytes) = 0;
  // Returns kDone if the bytes are the ones last taken, else kCorrupt for the first that differ.
  virtual IoOutcome compare_checksums(ExtentId extent, std::size_t offset,
                                      std::span<const std::byte> bytes) const = 0;
  // Blocks until nothing is in flight and every completion has returned.
  virtual void drain() = 0;

  // The alignment of memory addresses, and of request sizes in the middle of an extent.
  virtual std::size_t alignment() const = 0;
  // The granularity of partial requests: a power of two. In real stores it is 1 MiB, or the size
  // with which the drive was measured to be best.
  virtual std::size_t block_bytes() const = 0;
  virtual std::size_t used_bytes() const = 0;
  virtual std::vector<StorePath> paths() const = 0;
};

}  // namespace terrace
