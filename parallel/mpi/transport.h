#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "parallel/mpi/host_layout.h"

// The interface through which a staged communicator uses the processes of a group: memory that the
// ranks of one host share, messages between any two ranks, and, where the system allows it, reading
// each other's memory. There are two: MPI's, and the one in parallel/sockets.
namespace terrace {

// Messages are posted in sets, and each set is waited for as a whole. One thread at a time uses a
// transport.
enum class MessageSet : std::size_t { kEvenRounds, kOddRounds, kCall };

// Between one pair of ranks, messages with one tag arrive in the order of their posts.
enum class MessageTag : int { kCall = 1, kPiece, kPairCall, kPairData };

class Transport {
 public:
  virtual ~Transport() = default;
  // Which ranks are on which host; the same on all ranks.
  virtual const HostLayout& layout() const = 0;
  // Returns the window of a rank of this host: window_bytes that all ranks of the host read and
  // write, zero at first.
  virtual std::span<std::byte> window(int rank) const = 0;

  // Returns whether all ranks are on this host and can read each other's memory; the same on all
  // ranks.
  virtual bool reads_peers() const = 0;
  // Copies from an address of another rank's process. Returns 0 or an errno. Allowed only where
  // reads_peers().
  virtual int read_from(int rank, const std::byte* address, std::span<std::byte> to) = 0;

  // The bytes must stay valid until all_done(set) or drop(). At most 1 GiB. Both throw CommError.
  virtual void send(MessageSet set, MessageTag tag, int to, std::span<const std::byte> bytes) = 0;
  virtual void receive(MessageSet set, MessageTag tag, int from, std::span<std::byte> bytes) = 0;
  // Makes progress, and returns whether every message of the set has left or arrived. A message of
  // kPairCall has left when the receiver has asked for it.
  virtual bool all_done(MessageSet set) = 0;
  // Returns whether a message of the set from or to that rank was not done at the last all_done().
  virtual bool is_pending(MessageSet set, int rank) const = 0;
  // The receives of a set that were not done at the last all_done().
  struct PendingReceives {
    int count = 0;
    int from = -1;  // the peer of one of them
  };
  virtual PendingReceives pending_receives(MessageSet set) const = 0;
  // Forgets the messages of all sets, after an abort.
  virtual void drop() = 0;

  // Tells all ranks of all transports made together. The first reason is kept. Any thread.
  virtual void abort(const std::string& reason) = 0;
  // Also looks for news of an abort. Any thread.
  virtual bool is_aborted() = 0;
  virtual std::string abort_reason() const = 0;

  // Called by all ranks at the same time.
  virtual std::unique_ptr<Transport> split(int color, int key) = 0;
};

// Returns the size of the window that a group of `ranks` ranks needs, on one host or on several.
std::size_t window_bytes(int ranks, bool spans_hosts);

}  // namespace terrace
