#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "parallel/communicator.h"
#include "parallel/mpi/chain_exchange.h"
#include "parallel/mpi/direct_exchange.h"
#include "parallel/mpi/exchange.h"
#include "parallel/mpi/transport.h"
#include "parallel/wire_call.h"

namespace terrace {

// The head of a rank's window. Counts only grow, from call to call; each has a line of its own.
struct WindowHead {
  alignas(64) std::atomic<std::uint64_t> arrived;  // calls begun
  alignas(64) std::atomic<std::uint64_t> given;    // rounds whose pieces are in the window
  alignas(64) std::atomic<std::uint64_t> carried;  // rounds whose carried pieces are
  alignas(64) std::atomic<std::uint64_t> consumed;
  alignas(64) std::atomic<std::uint64_t> has_left;
  std::atomic<std::uint64_t> has_failed;  // one of its calls has thrown: its buffers may be gone
  alignas(64) WireCall calls[2];          // the last two, by parity
  DirectExchange::Buffers buffers[2];
};

// Ranks as processes. Each rank gives its pieces in its window, where ranks of the same host take
// them, and by message to ranks of other hosts, twice the slot's room at a time. Then each rank
// reduces its own part in rank order, as thread ranks do. Where ranks can read each other's memory,
// they take large data from there (DirectExchange), without windows. A call allocates nothing.
//
// Where a host has several ranks and there are several hosts, a piece that all ranks get goes once
// to each host, to the window of one rank, where the others take it; and large sums are taken host
// by host (ChainExchange) if fewer bytes then cross between hosts.
// CommunicatorOptions::hierarchical decides otherwise.
//
// After an error, a message to another host may still read this rank's buffers, and the scratch
// space of the communicator: keep both until the process ends. A rank of this host may still read
// the addresses where they were, and then fails too.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Transport> transport, const std::string& name,
                     const CommunicatorOptions& options);
  ~StagedCommunicator() override;

  void abort(const std::string& reason) override { transport_->abort(reason); }
  std::optional<std::string> abort_reason() override {
    if (!transport_->is_aborted()) return std::nullopt;
    return transport_->abort_reason();
  }

 private:
  void run(const CollectiveCall& call, NativeStream stream) override;
  void carry_out(const CollectiveCall& call);
  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override;

  // Waits for all ranks, and compares their calls.
  void meet(const CollectiveCall& call);
  bool goes_direct(const CollectiveCall& call) const;
  void run_direct(const CollectiveCall& call);
  void run_staged(const CollectiveCall& call);
  bool goes_in_chain(const CollectiveCall& call) const;
  void run_chain(const CollectiveCall& call);
  void run_chain_round(const CollectiveCall& call, const ChainExchange& chain, std::uint64_t round);
  void receive_for(const ChainExchange& chain, std::uint64_t round);
  ExchangeSetting setting_of(const CollectiveCall& call);
  void exchange(const CollectiveCall& call, Exchange& pieces);
  void give(const CollectiveCall& call, Exchange& pieces, std::uint64_t round);
  void post_messages(Exchange& pieces, std::uint64_t round, int other);
  void take(const CollectiveCall& call, Exchange& pieces, std::uint64_t round);
  void run_pair(const CollectiveCall& call);
  void move_pair_data(const CollectiveCall& call);

  // A wait for the messages of a set, and until a count in the heads of all ranks of this host is
  // at least a number.
  struct Awaited {
    MessageSet set = MessageSet::kCall;
    bool only_receives = false;  // not for what this rank sends
    std::atomic<std::uint64_t> WindowHead::* count = nullptr;
    std::uint64_t at_least = 0;
    std::chrono::nanoseconds grace = std::chrono::nanoseconds(0);  // beyond the timeout
  };
  // Blocks until it is over. Returns the rank that it waited for to the end, if that was a single
  // one; else -1.
  int wait(const CollectiveCall& call, const Awaited& awaited);
  int wait_for_locals(const CollectiveCall& call, std::atomic<std::uint64_t> WindowHead::* count,
                      std::uint64_t at_least, MessageSet set,
                      std::chrono::nanoseconds grace = std::chrono::nanoseconds(0));
  bool is_missing(const Awaited& awaited, int rank) const;
  int only_missing(const Awaited& awaited) const;
  [[noreturn]] void fail(const CollectiveCall& call);
  // Fails if a rank of this host has failed: data read from it since then may not have been its
  // buffers.
  void fail_with_locals(const CollectiveCall& call);
  [[noreturn]] void abort_and_fail(const CollectiveCall& call, const std::string& what);

  const HostLayout& layout() const { return transport_->layout(); }
  WindowHead& head(int rank) const;
  // Returns the slot of a rank of this host that has the pieces of a round.
  std::byte* slot(int rank, std::uint64_t round) const;
  // Returns the place in the slot of `from` that has the piece for `to`, if ranks get different
  // pieces of at most `room` bytes.
  std::byte* staged(int from, int to, std::uint64_t round, std::size_t room) const;
  // Returns the place in the slot of a rank of this host that has the piece of `from`, a rank of
  // another host, for all ranks of this host.
  std::byte* carried(int from, std::uint64_t round, std::size_t room) const;
  std::span<std::byte> gather_slot(int rank, std::size_t index) const;

  const std::unique_ptr<Transport> transport_;
  const CommunicatorOptions options_;
  const std::size_t slot_bytes_;
  const bool carries_;       // a piece for all ranks goes to each other host once
  const bool chains_;        // sums can be taken host by host
  const int shared_pieces_;  // in a slot, in rounds in which all ranks get the same piece
  std::vector<std::size_t> carried_place_;  // by rank of another host, in its carrier's slot
  std::vector<std::byte> scratch_;
  std::vector<WireCall> their_calls_;                   // by rank
  std::vector<DirectExchange::Buffers> their_buffers_;  // by rank; only ranks of this host
  // The pieces that are being consumed, by rank or, in a chain, by place on this host.
  std::vector<const std::byte*> pieces_;
  WireCall own_call_;
  std::uint64_t calls_ = 0;
  std::uint64_t rounds_ = 0;  // of all calls before this one
};

}  // namespace terrace
