#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "base/half.h"
#include "base/hash.h"
#include "memory/host/worker_arena.h"
#include "optim/update_rule.h"
#include "runtime/engine/home_access.h"
#include "runtime/model/state_field.h"

namespace terrace {

// Where the state of units comes from: elements [begin, begin + out.size()) of a field of a unit's
// flat sequence, whose padding is zero. Called by several threads at a time.
using ElementSource = FunctionRef<void(StateField field, std::int32_t unit, std::int64_t begin,
                                       std::span<float> out)>;
// Where the bytes of quantised matrices come from: those from element `begin` of a unit's sequence
// on, within UnitModel::quantized. Called by one thread, front to back.
using ByteSource = FunctionRef<void(std::int32_t unit, std::int64_t begin, std::span<std::byte> out,
                                    WorkerArena& workers)>;
// Where the update rule's slots come from at the start.
enum class SlotStart : std::uint8_t {
  kFromSource,
  kZero,  // of which a drive need not be written
};

// All that homes are filled with. Borrows both; `bytes` is null where nothing is quantised.
struct FillSource {
  ElementSource elements;
  const ByteSource* bytes = nullptr;
  SlotStart slots = SlotStart::kFromSource;
};
using FillProgress = FunctionRef<void(std::int64_t done, std::int64_t total)>;

// What a home has of a field: values of a type, or the exponents of their blocks. No bytes of what
// there is not.
struct FieldPart {
  StateField field;
  StatePart part;
  bool exponents = false;
};

// The training state as flat fp32 sequences per unit, whatever tier it lives in and whatever it is
// stored as. Used between runs only, by one thread.
class UnitState {
 public:
  // Borrows all.
  UnitState(HomeAccess& homes, const StepModel& model, const UpdateRule& rule)
      : homes_(homes), model_(model), rule_(rule) {}

  // All that is at home here. Tells after each part how many of all parts are done.
  void fill(
      const FillSource& source, WorkerArena& workers,
      FillProgress progress = [](std::int64_t, std::int64_t) {});
  // A hash of the parameters that were filled in, where data-parallel ranks have the same ones; of
  // nothing elsewhere.
  std::uint64_t parameters_hash() const { return parameters_hash_->value(); }
  // Elements [begin, begin + out.size()) of a unit's flat sequence, which are at home here. What is
  // frozen has its parameters alone, in the type that computes; all else of it is zero. Of what is
  // quantised there are no elements: nobody may ask for their parameters.
  void read(StateField field, std::int32_t unit, std::int64_t begin, std::span<float> out);
  // Whether all of these elements are at home on this rank.
  bool is_here(StateField field, std::int32_t unit, ElementSpan elements) const;

 private:
  bool is_chunk_here(StateField field, std::int32_t unit, std::int64_t chunk,
                     ElementSpan elements) const;
  // What the home of so many elements holds, part by part.
  std::vector<FieldPart> home_parts(StateClass state, std::int64_t elements) const;
  bool is_left_zero(const FieldPart& part) const;
  void fill_home(StateClass state, const FillSource& source, std::int32_t unit, std::int64_t chunk,
                 WorkerArena& workers);
  // Whether data-parallel ranks have the same parameters.
  bool has_copies() const { return model_.zero.ranks > 1 && !model_.zero.of_parameters(); }
  // What a home stores: a field in a type, or the exponents of its blocks.
  struct Target {
    StateField field;
    DType dtype;
    bool exponents = false;
  };
  // Bytes of a home, and the element of the unit's sequence that they begin with.
  struct Piece {
    std::int64_t begin;
    std::span<std::byte> bytes;
  };
  // A piece of parameters, of which some may be bytes of quantised matrices.
  void fill_parameters(const FillSource& source, std::int32_t unit, const Piece& piece,
                       WorkerArena& workers);
  void fill_piece(ElementSource source, std::int32_t unit, Target target, const Piece& piece,
                  WorkerArena& workers);
  void read_frozen(StateField field, std::int32_t unit, std::int64_t chunk, std::int64_t begin,
                   std::span<float> out);
  void read_half_slot(std::size_t slot, std::int32_t unit, std::int64_t chunk, std::int64_t begin,
                      std::span<float> out);
  void read_coded_slot(std::size_t slot, std::int32_t unit, std::int64_t chunk, std::int64_t begin,
                       std::span<float> out);
  void read_split_masters(std::int32_t unit, std::int64_t chunk, std::int64_t begin,
                          std::span<float> out);
  // Where an element of a chunk lies among those of it that are at home here.
  std::size_t in_home(StateClass state, std::int32_t unit, std::int64_t chunk,
                      std::int64_t begin) const;
  // The home of a field that is kept exactly, and where in it the field's values begin.
  struct FieldHome {
    StateClass state = StateClass::kParameters;
    std::size_t begin = 0;
  };
  FieldHome home_of(StateField field, std::int32_t unit, std::int64_t chunk) const;
  StateLayout state_layout(std::int32_t unit, std::int64_t chunk) const;
  void read_chunk(StateField field, std::int32_t unit, std::int64_t chunk, std::int64_t begin,
                  std::span<float> out);

  HomeAccess& homes_;
  const StepModel& model_;
  const UpdateRule& rule_;
  SlotStart slots_ = SlotStart::kFromSource;  // of the fill that is under way
  std::optional<StreamingHash> parameters_hash_{std::in_place};
  // Halves of split masters that are being read.
  std::vector<Bf16> high_;
  std::vector<std::int16_t> low_;
};

}  // namespace terrace
