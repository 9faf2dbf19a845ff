#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "parallel/communicator.h"

// Collectives as rounds of pieces. In a round every rank gives one piece to every other rank, and
// then consumes the pieces that it was given. This file decides what the pieces are; the staged
// communicator decides how they travel (by a shared window or by a message).
namespace terrace {

// The call, the rank that makes it, and how large pieces may be.
struct ExchangeSetting {
  CollectiveCall call;
  int rank = 0;
  int size = 1;
  std::size_t slot_bytes = 0;  // room for all pieces of a round in a rank's slot
  int shared_pieces = 1;       // pieces in a slot, in rounds in which all ranks get the same piece
  std::span<std::byte>
      scratch{};  // room for 2 rounds of pieces from all ranks if some come by message; else unused
  // Two slots, used in turns, where ranks of this host read the data that this rank has reduced for
  // all. Empty where there are no such ranks.
  std::array<std::span<std::byte>, 2> gather_slots{};
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::uint64_t rounds() const = 0;
  // The room for each piece in a slot; a multiple of 64 bytes.
  virtual std::size_t room() const = 0;
  // Returns whether the piece of the next round may be given before the piece of this round is
  // consumed.
  virtual bool gives_ahead() const = 0;
  // Returns whether all ranks are given the same piece in a round.
  virtual bool is_shared(std::uint64_t round) const = 0;
  // Returns the gather slot into which consume() of an earlier round has already written the piece
  // of this round; nothing if the piece is still to be given.
  virtual std::optional<std::size_t> gather_slot(std::uint64_t /*round*/) const { return {}; }
  // Returns the piece for a rank, which may be this one. The piece may be empty.
  virtual std::span<const std::byte> give(std::uint64_t round, int to) const = 0;
  // Returns where the piece of another rank belongs in the end; as large as that piece. A message
  // may bring it there.
  virtual std::span<std::byte> place(std::uint64_t round, int from) const = 0;
  // `pieces`, indexed by rank, are the pieces that each rank gives to this one. A piece that
  // already lies in its place needs no copy.
  virtual void consume(std::uint64_t round, std::span<const std::byte* const> pieces) = 0;
};

// Returns the size of the largest piece, a multiple of 64 bytes. `scattered`: a rank gives
// different pieces to different ranks.
std::size_t piece_bytes(const ExchangeSetting& setting, bool scattered);

// all_gather, broadcast, all_to_all; and the second half of an all_reduce, which gathers the parts
// that ranks have reduced.
class MoveExchange final : public Exchange {
 public:
  explicit MoveExchange(const ExchangeSetting& setting);
  std::uint64_t rounds() const override;
  std::size_t room() const override { return piece_; }
  bool gives_ahead() const override { return true; }
  bool is_shared(std::uint64_t round) const override;
  std::span<const std::byte> give(std::uint64_t round, int to) const override;
  std::span<std::byte> place(std::uint64_t round, int from) const override;
  void consume(std::uint64_t round, std::span<const std::byte* const> pieces) override;

 private:
  bool is(CollectiveKind kind) const { return setting_.call.kind == kind; }
  bool gives(int rank) const;
  struct Extent {
    std::size_t offset = 0;  // in the part of a rank
    std::size_t bytes = 0;
  };
  std::size_t part_begin(int rank) const;  // in the target
  Extent piece_of(std::uint64_t round, int rank) const;

  const ExchangeSetting setting_;
  const std::size_t part_;   // the most bytes that a rank gives to another in all rounds
  const std::size_t piece_;  // bytes
};

// reduce_scatter and all_reduce. The rounds of an all_reduce alternate between its reduce-scatter
// and its all-gather, so that a piece is gathered while it is in the caches. A reduced piece is
// written to the data and to a gather slot at the same time: round 2k-1 writes slot k % 2, which
// was read in round 2k-2. The piece of round 2k is given first, when all are done with round 2k-2.
class ReduceExchange final : public Exchange {
 public:
  explicit ReduceExchange(const ExchangeSetting& setting);
  std::size_t room() const override { return piece_; }
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
  // The part of the data that rank r reduces, and a segment of that part.
  Extent part_of(int rank) const;
  Extent segment_of(int rank, std::uint64_t segment) const;
  std::byte* reduced(std::uint64_t segment) const;

  const ExchangeSetting setting_;
  const bool gathers_;
  const std::size_t piece_;
  const std::uint64_t segments_;
};

}  // namespace terrace
