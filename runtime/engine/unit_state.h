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
#include "runtime/engine/home_access.h"
#include "runtime/engine/optimizer_options.h"
#include "runtime/model/state_field.h"

namespace terrace {

// The source of the state of groups. Sets elements [begin, begin + out.size()) of a field of a
// group's flat sequence, whose padding is zero. Called by several threads at a time.
using ElementSource = FunctionRef<void(StateField field, std::int32_t group, std::int64_t begin,
                                       std::span<float> out)>;
// The source of the bytes of quantised matrices. Sets the bytes from element `begin` of a group's
// sequence on, within ParameterGroup::quantized. Called by one thread, front to back.
using ByteSource = FunctionRef<void(std::int32_t group, std::int64_t begin,
                                    std::span<std::byte> out, WorkerArena& workers)>;
// The source of the update rule's slots at the start.
enum class SlotStart : std::uint8_t {
  kFromSource,
  kZero,  // nothing of them need be written to a drive
};

// The sources that homes are filled from. Borrows both; `bytes` is null where nothing is quantised.
struct FillSource {
  ElementSource elements;
  const ByteSource* bytes = nullptr;
  SlotStart slots = SlotStart::kFromSource;
};
using FillProgress = FunctionRef<void(std::int64_t done, std::int64_t total)>;

// The part of a home that belongs to a field: values of a type, or the exponents of their blocks.
// It has no bytes if the home stores no such part.
struct FieldPart {
  StateField field;
  StatePart part;
  bool exponents = false;
};

// Returns the bytes of the errors of coded gradients that each rank of a pipeline stage keeps.
std::size_t errors_bytes(const StepModel& model, std::int32_t stage);

// The training state as flat fp32 sequences per group, whatever tier it lives in and whatever form
// it is stored in. Used between runs only, by one thread.
class UnitState {
 public:
  // Borrows all.
  UnitState(HomeAccess& homes, const StepModel& model, const OptimizerOptions& optimizer)
      : homes_(homes), model_(model), optimizer_(optimizer) {}

  const StepModel& model() const { return model_; }
  // Fills all state that is at home here. After each part `progress` is told how many of all parts
  // are done.
  void fill(
      const FillSource& source, WorkerArena& workers,
      FillProgress progress = [](std::int64_t, std::int64_t) {});
  // Returns a hash of the parameters that were filled in, where data-parallel ranks have the same
  // ones. Elsewhere it is the hash of nothing.
  std::uint64_t parameters_hash() const { return parameters_hash_->value(); }
  // Reads elements [begin, begin + out.size()) of a group's flat sequence, which are at home here.
  // Frozen elements have only their parameters, in the group's type; their other fields read as
  // zero. Quantised elements have no values: their parameters must not be asked for.
  void read(StateField field, std::int32_t group, std::int64_t begin, std::span<float> out);
  // Sets `out` to parameters as they are stored, from element `begin` of a group on, none of whose
  // elements train. An evaluation may run meanwhile, because it changes no home.
  void read_stored(std::int32_t group, std::int64_t begin, std::span<std::byte> out);
  // Returns the bytes that all reads have read from drives so far: whole blocks.
  std::size_t bytes_read() const { return homes_.bytes_read(); }
  // Returns the bytes of this rank's errors of coded gradients; 0 where it keeps none. They lie one
  // behind the other: groups in their order, and chunks within a group.
  std::size_t errors_bytes() const { return terrace::errors_bytes(model_, model_.pipeline.stage); }
  // Reads bytes [first, first + out.size()) of the errors, as they are stored.
  void read_errors(std::size_t first, std::span<std::byte> out);
  // Replaces all errors. Calls `source` for one part after another, front to back; it sets the
  // bytes of the part that begins at `first`.
  void write_errors(FunctionRef<void(std::size_t first, std::span<std::byte> part)> source);
  // Returns whether all of these elements are at home on this rank.
  bool is_here(StateField field, std::int32_t group, ElementSpan elements) const;

 private:
  bool is_chunk_here(StateField field, std::int32_t group, std::int64_t chunk,
                     ElementSpan elements) const;
  // Returns the parts that the home of `elements` elements holds.
  std::vector<FieldPart> home_parts(StateClass state, std::int32_t group,
                                    std::int64_t elements) const;
  bool is_left_zero(const FieldPart& part, std::int32_t group) const;
  void fill_home(StateClass state, const FillSource& source, std::int32_t group, std::int64_t chunk,
                 WorkerArena& workers);
  // Sets the errors of a chunk's codes to zero.
  void clear_errors(std::int32_t group, std::int64_t chunk);
  const UpdateRule& rule_of(std::int32_t group) const;
  // Returns whether other data-parallel ranks have the same parameters as this one.
  bool has_copies() const { return model_.zero.parts(StateClass::kParameters) < model_.zero.ranks; }
  // The content that a home stores: a field in a type, or the exponents of its blocks.
  struct Target {
    StateField field;
    DType dtype;
    bool exponents = false;
  };
  // Bytes of a home, and the element of the group's sequence that they begin with.
  struct Piece {
    std::int64_t begin;
    std::span<std::byte> bytes;
  };
  // Calls visit() with the bytes of each of the home's pieces, and the chunk's element that they
  // begin with.
  static void for_each_piece(const HomePart& home, std::int64_t place, const FieldPart& of,
                             std::span<std::byte> bytes,
                             FunctionRef<void(const Piece& piece)> visit);
  // Fills a piece of parameters; some of it may be bytes of quantised matrices.
  void fill_parameters(const FillSource& source, std::int32_t group, const Piece& piece,
                       WorkerArena& workers);
  void fill_piece(ElementSource source, std::int32_t group, Target target, const Piece& piece,
                  WorkerArena& workers);
  void read_frozen(StateField field, std::int32_t group, std::int64_t chunk, std::int64_t begin,
                   std::span<float> out);
  void read_half_slot(std::size_t slot, std::int32_t group, std::int64_t chunk, std::int64_t begin,
                      std::span<float> out);
  void read_coded_slot(std::size_t slot, std::int32_t group, std::int64_t chunk, std::int64_t begin,
                       std::span<float> out);
  void read_split_masters(std::int32_t group, std::int64_t chunk, std::int64_t begin,
                          std::span<float> out);
  // Returns the index of a chunk's element among the chunk's elements that are at home here.
  std::size_t in_home(StateClass state, std::int32_t group, std::int64_t chunk,
                      std::int64_t begin) const;
  // The home of a field that is kept exactly, and the byte at which the field's values begin in it.
  struct FieldHome {
    StateClass state = StateClass::kParameters;
    std::size_t begin = 0;
  };
  FieldHome home_of(StateField field, std::int32_t group, std::int64_t chunk) const;
  StateLayout state_layout(std::int32_t group, std::int64_t chunk) const;
  void read_chunk(StateField field, std::int32_t group, std::int64_t chunk, std::int64_t begin,
                  std::span<float> out);

  HomeAccess& homes_;
  const StepModel& model_;
  const OptimizerOptions& optimizer_;
  SlotStart slots_ = SlotStart::kFromSource;  // of the fill that is under way
  std::optional<StreamingHash> parameters_hash_{std::in_place};
  // The halves of split masters that are being read.
  std::vector<Bf16> high_;
  std::vector<std::int16_t> low_;
};

}  // namespace terrace
