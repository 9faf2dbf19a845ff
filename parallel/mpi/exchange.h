#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "parallel/communicator.h"

// Collectives as rounds of pieces. In a round every rank gives one piece to every other rank, and
// then consumes the pieces that it was given. How pieces travel (a shared window, a message) is the
// staged communicator's part; what they are is decided here.
namespace terrace {

// Who makes a call, and how large pieces may be.
struct ExchangeSetting {
  CollectiveCall call;
  int rank = 0;
  int size = 1;
  std::size_t slot_bytes = 0;  // the pieces that a rank gives in a round have this much room
  std::span<std::byte>
      scratch{};  // 2 rounds of pieces from all ranks where some come by message; else not used
  // Where ranks of this host read what this one has reduced for all, by turns; empty where there
  // are none.
  std::array<std::span<std::byte>, 2> gather_slots{};
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::uint64_t rounds() const = 0;
  // Whether the piece of the next round may be given before that of this round is consumed.
  virtual bool gives_ahead() const = 0;
  // Whether all ranks are given the same piece in a round.
  virtual bool is_shared(std::uint64_t round) const = 0;
  // The gather slot where consume() of an earlier round has written the piece of this round; none
  // where it is still to be given.
  virtual std::optional<std::size_t> gather_slot(std::uint64_t /*round*/) const { return {}; }
  // The piece for a rank, this one too. May be empty.
  virtual std::span<const std::byte> give(std::uint64_t round, int to) const = 0;
  // Where the piece of another rank goes if it comes by message; as large as that piece.
  virtual std::span<std::byte> place(std::uint64_t round, int from) const = 0;
  // `pieces` by rank: what each gives to this one. Those of its place need no copy.
  virtual void consume(std::uint64_t round, std::span<const std::byte* const> pieces) = 0;
};

// The largest piece: a multiple of 64 bytes. `scattered`: a rank gives different pieces.
std::size_t piece_bytes(const ExchangeSetting& setting, bool scattered);

// all_gather, broadcast, all_to_all.
class MoveExchange final : public Exchange {
 public:
  explicit MoveExchange(const ExchangeSetting& setting);
  std::uint64_t rounds() const override;
  bool gives_ahead() const override { return true; }
  bool is_shared(std::uint64_t round) const override;
  std::span<const std::byte> give(std::uint64_t round, int to) const override;
  std::span<std::byte> place(std::uint64_t round, int from) const override;
  void consume(std::uint64_t round, std::span<const std::byte* const> pieces) override;

 private:
  bool is(CollectiveKind kind) const { return setting_.call.kind == kind; }
  bool gives(int rank) const;

  const ExchangeSetting setting_;
  const std::size_t part_;   // bytes that a rank gives to another in all rounds
  const std::size_t piece_;  // bytes
};

// reduce_scatter and all_reduce. The rounds of an all_reduce are its reduce-scatter and its
// all-gather, taken in turns, so that a piece is gathered while it is in the caches. What is
// reduced is written to the data and to a gather slot at once: round 2k-1 writes slot k % 2, which
// was read in round 2k-2, and the piece of round 2k is given first, when all are done with that.
class ReduceExchange final : public Exchange {
 public:
  explicit ReduceExchange(const ExchangeSetting& setting);
  std::uint64_t rounds() const override { return gathers_ ? 2 * segments_ : segments_; }
  bool gives_ahead() const override { return !gathers_ || segments_ > 1; }
  bool is_shared(std::uint64_t round) const override { return step_of(round).is_gather; }
  std::optional<std::size_t> gather_slot(std::uint64_t round) const override;
  std::span<const std::byte> give(std::uint64_t round, int to) const override;
  std::span<std::byte> place(std::uint64_t round, int from) const override;
  void consume(std::uint64_t round, std::span<const std::byte* const> pieces) override;

 private:
  struct Step {
    bool is_gather = false;
    std::uint64_t segment = 0;
  };
  struct Extent {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  Step step_of(std::uint64_t round) const;
  // Of the data, what rank r reduces; and a segment of it.
  Extent part_of(int rank) const;
  Extent segment_of(int rank, std::uint64_t segment) const;
  std::byte* reduced(std::uint64_t segment) const;

  const ExchangeSetting setting_;
  const bool gathers_;
  const std::size_t piece_;
  const std::uint64_t segments_;
};

}  // namespace terrace
