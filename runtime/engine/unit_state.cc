#include "runtime/engine/unit_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/half_arrays.h"
#include "optim/moment_code.h"

namespace terrace {
namespace {

// The number of elements that sources are asked for at a time.
constexpr std::int64_t kGrain = 16 * 1024;

// The number of split masters that are read at a time. It is several blocks of each half, because a
// home on NVMe gives no less than a block.
constexpr std::size_t kSplitPiece = std::size_t{1} << 20;

std::vector<FieldPart> parts_of(const StateLayout& layout) {
  std::vector<FieldPart> parts = {{StateField::kMaster, layout.master}};
  for (std::size_t slot = 0; slot < kMostSlots; ++slot) {
    parts.push_back({field_of_slot(slot), layout.slots.at(slot)});
    parts.push_back({field_of_slot(slot), layout.exponents.at(slot), true});
  }
  return parts;
}

// Returns whether a state of this class lasts from step to step. Other states are made anew in
// each.
bool lasts(const StateClassInfo& info) {
  return info.use == StateUse::kEveryPass || info.use == StateUse::kUpdate;
}

// Conversions of exact values to narrow forms. A value that was read from the same form is stored
// unchanged.

void narrow_master(std::span<const float> exact, DType dtype, std::byte* out) {
  TERRACE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kI16);
  const std::size_t count = exact.size();
  if (dtype == DType::kF16) {
    to_parameters(exact, std::span(reinterpret_cast<Fp16*>(out), count));
  } else if (dtype == DType::kBF16) {
    to_parameters(exact, std::span(reinterpret_cast<Bf16*>(out), count));
  } else {
    to_remainders(exact, std::span(reinterpret_cast<std::int16_t*>(out), count));
  }
}

std::uint8_t exponent_of(std::span<const float> block) {
  std::uint32_t largest = 0;
  for (const float value : block) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  }
  return block_exponent(largest);
}

std::uint8_t encode_number(bool has_sign, float value, std::uint8_t exponent) {
  return has_sign ? encode_moment1(value, exponent, kHalfOfDropped)
                  : encode_moment2(value, exponent, kHalfOfDropped);
}

// Encodes whole blocks of a slot: their codes, or their exponents.
void encode_slot(bool has_sign, std::span<const float> exact, bool exponents, std::byte* out) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(out);
  constexpr auto kBlock = static_cast<std::size_t>(kMomentBlock);
  for (std::size_t at = 0; at < exact.size(); at += kBlock) {
    const std::uint8_t exponent = exponent_of(exact.subspan(at, kBlock));
    if (exponents) {
      bytes[at / kBlock] = exponent;
      continue;
    }
    for (std::size_t i = at; i < at + kBlock; ++i) {
      bytes[i] = encode_number(has_sign, exact[i], exponent);
    }
  }
}

void narrow_slot(std::span<const float> exact, std::byte* out) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    reinterpret_cast<Bf16*>(out)[i] = to_bf16_nearest_even(exact[i]);
  }
}

// Calls visit() with each chunk that has errors on this rank, and the byte at which they begin.
void for_each_error_chunk(
    const StepModel& model,
    FunctionRef<void(std::int32_t group, std::int64_t chunk, std::size_t begin)> visit) {
  std::size_t begin = 0;
  for (std::int32_t group = 0; group < model.group_count(); ++group) {
    if (!model.has_home(StateClass::kErrors, group)) continue;
    const std::int64_t chunks = model.home_chunks(StateClass::kErrors, group);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      visit(group, chunk, begin);
      begin += model.home_bytes(StateClass::kErrors, group, chunk);
    }
  }
}

}  // namespace

std::size_t errors_bytes(const StepModel& model, std::int32_t stage) {
  std::size_t bytes = 0;
  if (!model.keeps_errors()) return bytes;
  for (std::int32_t group = 0; group < model.group_count(); ++group) {
    if (!model.group_trains(group) || model.stage_of(model.owner(group)) != stage) continue;
    const std::int64_t chunks = model.home_chunks(StateClass::kErrors, group);
    bytes += model.home_offset(StateClass::kErrors, group, chunks);
  }
  return bytes;
}

void UnitState::fill(const FillSource& source, WorkerArena& workers, FillProgress progress) {
  slots_ = source.slots;
  parameters_hash_.emplace();
  std::int64_t total = 0;
  for (std::int32_t group = 0; group < model_.group_count(); ++group) total += model_.chunks(group);
  std::int64_t done = 0;
  for (std::int32_t group = 0; group < model_.group_count(); ++group) {
    for (std::int64_t chunk = 0; chunk < model_.chunks(group); ++chunk) {
      for (const StateClassInfo& info : kStateClasses) {
        if (!model_.has_home(info.state, group)) continue;
        if (chunk >= model_.home_chunks(info.state, group)) continue;
        if (lasts(info)) fill_home(info.state, source, group, chunk, workers);
        if (info.state == StateClass::kErrors) clear_errors(group, chunk);
      }
      progress(++done, total);
    }
  }
}

void UnitState::clear_errors(std::int32_t group, std::int64_t chunk) {
  homes_.write(StateClass::kErrors, group, chunk,
               [](std::size_t, std::span<std::byte>) { return false; });
}

void UnitState::read_errors(std::size_t first, std::span<std::byte> out) {
  TERRACE_CHECK_LE(first + out.size(), errors_bytes());
  for_each_error_chunk(model_, [&](std::int32_t group, std::int64_t chunk, std::size_t begin) {
    const std::size_t end = begin + model_.home_bytes(StateClass::kErrors, group, chunk);
    const std::size_t from = std::max(first, begin);
    const std::size_t to = std::min(first + out.size(), end);
    if (from >= to) return;
    homes_.read(StateClass::kErrors, group, chunk, from - begin,
                out.subspan(from - first, to - from));
  });
}

void UnitState::write_errors(
    FunctionRef<void(std::size_t first, std::span<std::byte> part)> source) {
  for_each_error_chunk(model_, [&](std::int32_t group, std::int64_t chunk, std::size_t begin) {
    homes_.write(StateClass::kErrors, group, chunk,
                 [&](std::size_t first, std::span<std::byte> part) {
                   source(begin + first, part);
                   return true;
                 });
  });
}

std::vector<FieldPart> UnitState::home_parts(StateClass state, std::int32_t group,
                                             std::int64_t elements) const {
  if (state == StateClass::kOptimizer) return parts_of(model_.format_of(group).layout(elements));
  TERRACE_CHECK(state == StateClass::kParameters);
  return {{StateField::kMaster,
           {model_.parameter_type(group), 0, model_.state_bytes(state, group, elements)}}};
}

// Returns whether the part need not be written because it is zero. 8-bit slots are always written:
// even codes of zeros have exponents, which are stored.
bool UnitState::is_left_zero(const FieldPart& part, std::int32_t group) const {
  const bool is_slot = slot_of(part.field).has_value() && !part.exponents;
  const bool is_plain = model_.format_of(group).slot_form != SlotForm::kInt8;
  return slots_ == SlotStart::kZero && is_slot && is_plain;
}

const UpdateRule& UnitState::rule_of(std::int32_t group) const {
  return *optimizer_.rule_of(model_.groups.at(static_cast<std::size_t>(group)).rule).rule;
}

void UnitState::fill_home(StateClass state, const FillSource& source, std::int32_t group,
                          std::int64_t chunk, WorkerArena& workers) {
  const HomePart here = model_.home_part(state, group, chunk);
  const std::vector<FieldPart> parts = home_parts(state, group, here.count);
  const std::int64_t first_element = model_.chunk_begin(group, chunk);
  const bool is_hashed = state == StateClass::kParameters && has_copies();
  homes_.write(state, group, chunk, [&](std::size_t first, std::span<std::byte> piece) {
    bool has_content = false;
    for (const FieldPart& field_part : parts) {  // a piece may reach over several
      const StatePart& part = field_part.part;
      const std::size_t begin = std::max(first, part.begin);
      const std::size_t end = std::min(first + piece.size(), part.end());
      if (begin >= end || is_left_zero(field_part, group)) continue;
      // Before its first content: what lies between the parts and after the last one is zero.
      const bool is_whole = end - begin == piece.size();
      if (!std::exchange(has_content, true) && !is_whole) std::ranges::fill(piece, std::byte{0});
      const auto values = static_cast<std::int64_t>((begin - part.begin) / size_of(part.dtype));
      const std::int64_t at = field_part.exponents ? values * kMomentBlock : values;
      for_each_piece(here, at, field_part, piece.subspan(begin - first, end - begin),
                     [&](const Piece& of_home) {
                       const Piece filled = {first_element + of_home.begin, of_home.bytes};
                       if (state == StateClass::kParameters) {
                         fill_parameters(source, group, filled, workers);
                       } else {
                         fill_piece(source.elements, group,
                                    {field_part.field, part.dtype, field_part.exponents}, filled,
                                    workers);
                       }
                     });
    }
    if (is_hashed && has_content) parameters_hash_->add(piece);
    return has_content;
  });
}

// Divides the bytes of a field, from a place of the home on, where the home's pieces end.
void UnitState::for_each_piece(const HomePart& home, std::int64_t place, const FieldPart& of,
                               std::span<std::byte> bytes,
                               FunctionRef<void(const Piece& piece)> visit) {
  const std::size_t width = size_of(of.part.dtype);
  const std::int64_t of_value = of.exponents ? kMomentBlock : 1;  // elements
  const std::int64_t elements = home.piece_elements();
  while (!bytes.empty()) {
    const auto left = static_cast<std::size_t>((elements - place % elements) / of_value) * width;
    const std::span<std::byte> piece = bytes.first(std::min(left, bytes.size()));
    visit({home.element_at(place), piece});
    bytes = bytes.subspan(piece.size());
    place += static_cast<std::int64_t>(piece.size() / width) * of_value;
  }
}

void UnitState::fill_parameters(const FillSource& source, std::int32_t group, const Piece& piece,
                                WorkerArena& workers) {
  const auto width = static_cast<std::int64_t>(model_.parameter_bytes(group));
  const std::int64_t end = piece.begin + std::ssize(piece.bytes) / width;
  const ElementSpan& quantized = model_.groups.at(static_cast<std::size_t>(group)).quantized;
  // The parts before, within and after the quantised elements.
  const std::int64_t first = std::clamp(quantized.begin, piece.begin, end);
  const std::int64_t last = std::clamp(quantized.end, first, end);
  const auto part = [&](std::int64_t from, std::int64_t to) {
    return Piece{from, piece.bytes.subspan(static_cast<std::size_t>((from - piece.begin) * width),
                                           static_cast<std::size_t>((to - from) * width))};
  };
  const auto fill_elements = [&](std::int64_t from, std::int64_t to) {
    if (from == to) return;
    fill_piece(source.elements, group, {StateField::kMaster, model_.parameter_type(group)},
               part(from, to), workers);
  };
  fill_elements(piece.begin, first);
  if (first < last) {
    TERRACE_CHECK(source.bytes != nullptr);
    (*source.bytes)(group, first, part(first, last).bytes, workers);
  }
  fill_elements(last, end);
}

void UnitState::fill_piece(ElementSource source, std::int32_t group, Target target,
                           const Piece& piece, WorkerArena& workers) {
  const std::size_t width = size_of(target.dtype);
  const std::int64_t elements_per_value = target.exponents ? kMomentBlock : 1;
  const std::int64_t count =
      static_cast<std::int64_t>(piece.bytes.size() / width) * elements_per_value;
  workers.parallel_for((count + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
    const std::int64_t from = task * kGrain;
    const auto size = static_cast<std::size_t>(std::min(kGrain, count - from));
    std::byte* const out =
        piece.bytes.data() + static_cast<std::size_t>(from / elements_per_value) * width;
    if (target.dtype == DType::kF32) {
      source(target.field, group, piece.begin + from, {reinterpret_cast<float*>(out), size});
      return;
    }
    const auto values = std::make_unique_for_overwrite<float[]>(size);  // a stack may be small
    const std::span<float> exact(values.get(), size);
    source(target.field, group, piece.begin + from, exact);
    if (target.field == StateField::kMaster) {
      narrow_master(exact, target.dtype, out);
    } else if (target.dtype == DType::kBF16) {
      narrow_slot(exact, out);
    } else {
      encode_slot(rule_of(group).slots[slot_of(target.field).value()].has_sign, exact,
                  target.exponents, out);
    }
  });
}

void UnitState::read(StateField field, std::int32_t group, std::int64_t begin,
                     std::span<float> out) {
  std::int64_t at = begin;
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  while (at < end) {
    const std::int64_t chunk = model_.chunk_of(group, at);
    const std::int64_t chunk_begin = model_.chunk_begin(group, chunk);
    const std::int64_t stop = std::min(end, chunk_begin + model_.chunk_size(group, chunk));
    read_chunk(
        field, group, chunk, at - chunk_begin,
        out.subspan(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(stop - at)));
    at = stop;
  }
}

void UnitState::read_stored(std::int32_t group, std::int64_t begin, std::span<std::byte> out) {
  const std::size_t width = model_.parameter_bytes(group);
  TERRACE_CHECK_EQ(model_.trained_chunks(group), 0);
  TERRACE_CHECK_EQ(out.size() % width, 0U);
  while (!out.empty()) {
    const std::int64_t chunk = model_.chunk_of(group, begin);
    const std::int64_t in_chunk = begin - model_.chunk_begin(group, chunk);
    const std::int64_t left = model_.chunk_size(group, chunk) - in_chunk;
    const std::span<std::byte> part =
        out.first(std::min(out.size(), static_cast<std::size_t>(left) * width));
    const std::size_t first = in_home(StateClass::kParameters, group, chunk, in_chunk) * width;
    homes_.read(StateClass::kParameters, group, chunk, first, part);
    out = out.subspan(part.size());
    begin += static_cast<std::int64_t>(part.size() / width);
  }
}

std::size_t UnitState::in_home(StateClass state, std::int32_t group, std::int64_t chunk,
                               std::int64_t begin) const {
  const std::optional<std::int64_t> place = model_.home_part(state, group, chunk).place_of(begin);
  TERRACE_CHECK(place.has_value());
  return static_cast<std::size_t>(*place);
}

StateLayout UnitState::state_layout(std::int32_t group, std::int64_t chunk) const {
  return model_.format_of(group).layout(
      model_.home_part(StateClass::kOptimizer, group, chunk).count);
}

void UnitState::read_chunk(StateField field, std::int32_t group, std::int64_t chunk,
                           std::int64_t begin, std::span<float> out) {
  if (chunk >= model_.trained_chunks(group)) return read_frozen(field, group, chunk, begin, out);
  const StateFormat& format = model_.format_of(group);
  const std::optional<std::size_t> slot = slot_of(field);
  if (field == StateField::kMaster && format.master == MasterForm::kSplit) {
    return read_split_masters(group, chunk, begin, out);
  }
  if (slot && format.slot_form == SlotForm::kBf16) {
    return read_half_slot(*slot, group, chunk, begin, out);
  }
  if (slot && format.slot_form == SlotForm::kInt8) {
    return read_coded_slot(*slot, group, chunk, begin, out);
  }
  const FieldHome home = home_of(field, group, chunk);
  const std::size_t at = in_home(home.state, group, chunk, begin) * sizeof(float);
  homes_.read(home.state, group, chunk, home.begin + at, std::as_writable_bytes(out));
}

bool UnitState::is_here(StateField field, std::int32_t group, ElementSpan elements) const {
  for (std::int64_t at = elements.begin; at < elements.end;) {
    const std::int64_t chunk = model_.chunk_of(group, at);
    const std::int64_t begin = model_.chunk_begin(group, chunk);
    const std::int64_t end = std::min(elements.end, begin + model_.chunk_size(group, chunk));
    if (!is_chunk_here(field, group, chunk, {at - begin, end - begin})) return false;
    at = end;
  }
  return true;
}

// `elements` are counted from the chunk's beginning.
bool UnitState::is_chunk_here(StateField field, std::int32_t group, std::int64_t chunk,
                              ElementSpan elements) const {
  const auto has = [&](StateClass state) {
    if (!model_.has_home(state, group)) return false;
    const HomePart home = model_.home_part(state, group, chunk);
    return home.has_run(elements.begin, elements.end);
  };
  if (chunk >= model_.trained_chunks(group)) {
    return field != StateField::kMaster || has(StateClass::kParameters);
  }
  const MasterForm master = model_.format_of(group).master;
  const bool is_master = field == StateField::kMaster;
  const bool needs_parameters = is_master && master != MasterForm::kFp32;
  const bool needs_optimizer = !is_master || master != MasterForm::kParameter;
  return (!needs_parameters || has(StateClass::kParameters)) &&
         (!needs_optimizer || has(StateClass::kOptimizer));
}

UnitState::FieldHome UnitState::home_of(StateField field, std::int32_t group,
                                        std::int64_t chunk) const {
  const bool is_parameter =
      field == StateField::kMaster && model_.format_of(group).master == MasterForm::kParameter;
  for (const StateClassInfo& info : kStateClasses) {
    if (!lasts(info) || is_parameter != (info.state == StateClass::kParameters)) continue;
    const std::int64_t elements = model_.home_part(info.state, group, chunk).count;
    for (const auto& [found, part, exponents] : home_parts(info.state, group, elements)) {
      if (found != field || exponents) continue;
      TERRACE_CHECK(part.dtype == DType::kF32);
      return {info.state, part.begin};
    }
  }
  TERRACE_CHECK(false);
  return {};
}

// Frozen parameters are kept in their group's type, and in no other.
void UnitState::read_frozen(StateField field, std::int32_t group, std::int64_t chunk,
                            std::int64_t begin, std::span<float> out) {
  if (field != StateField::kMaster) {
    std::ranges::fill(out, 0.0F);
    return;
  }
  const ElementSpan& quantized = model_.groups.at(static_cast<std::size_t>(group)).quantized;
  const std::int64_t of_unit = model_.chunk_begin(group, chunk) + begin;
  TERRACE_CHECK(of_unit >= quantized.end || of_unit + std::ssize(out) <= quantized.begin);
  const std::size_t width = model_.parameter_bytes(group);
  const std::size_t first = in_home(StateClass::kParameters, group, chunk, begin) * width;
  if (model_.parameter_type(group) == DType::kF32) {
    return homes_.read(StateClass::kParameters, group, chunk, first, std::as_writable_bytes(out));
  }
  std::vector<std::uint16_t> narrow(out.size());
  homes_.read(StateClass::kParameters, group, chunk, first,
              std::as_writable_bytes(std::span(narrow)));
  if (model_.parameter_type(group) == DType::kF16) {
    to_floats(std::span(reinterpret_cast<const Fp16*>(narrow.data()), narrow.size()), out);
  } else {
    to_floats(std::span(reinterpret_cast<const Bf16*>(narrow.data()), narrow.size()), out);
  }
}

void UnitState::read_half_slot(std::size_t slot, std::int32_t group, std::int64_t chunk,
                               std::int64_t begin, std::span<float> out) {
  const StatePart part = state_layout(group, chunk).slots.at(slot);
  std::vector<Bf16> halves(out.size());
  homes_.read(StateClass::kOptimizer, group, chunk,
              part.begin + in_home(StateClass::kOptimizer, group, chunk, begin) * sizeof(Bf16),
              std::as_writable_bytes(std::span(halves)));
  to_floats(std::span<const Bf16>(halves), out);
}

void UnitState::read_coded_slot(std::size_t slot, std::int32_t group, std::int64_t chunk,
                                std::int64_t begin, std::span<float> out) {
  const StateLayout layout = state_layout(group, chunk);
  const bool has_sign = rule_of(group).slots[slot].has_sign;
  const std::size_t at = in_home(StateClass::kOptimizer, group, chunk, begin);
  constexpr auto kBlock = static_cast<std::size_t>(kMomentBlock);
  std::vector<std::uint8_t> codes(out.size());
  std::vector<std::uint8_t> exponents((at + out.size() - 1) / kBlock - at / kBlock + 1);
  homes_.read(StateClass::kOptimizer, group, chunk, layout.slots.at(slot).begin + at,
              std::as_writable_bytes(std::span(codes)));
  homes_.read(StateClass::kOptimizer, group, chunk, layout.exponents.at(slot).begin + at / kBlock,
              std::as_writable_bytes(std::span(exponents)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint8_t exponent = exponents[(at + i) / kBlock - at / kBlock];
    out[i] = has_sign ? decode_moment1(codes[i], exponent) : decode_moment2(codes[i], exponent);
  }
}

void UnitState::read_split_masters(std::int32_t group, std::int64_t chunk, std::int64_t begin,
                                   std::span<float> out) {
  const std::size_t remainders = state_layout(group, chunk).master.begin;
  const std::size_t first_high = in_home(StateClass::kParameters, group, chunk, begin);
  const std::size_t first_low = in_home(StateClass::kOptimizer, group, chunk, begin);
  high_.resize(kSplitPiece);
  low_.resize(kSplitPiece);
  const std::span high(high_);
  const std::span low(low_);
  for (std::size_t at = 0; at < out.size(); at += kSplitPiece) {
    const std::size_t count = std::min(kSplitPiece, out.size() - at);
    homes_.read(StateClass::kParameters, group, chunk, (first_high + at) * sizeof(Bf16),
                std::as_writable_bytes(high.first(count)));
    homes_.read(StateClass::kOptimizer, group, chunk,
                remainders + (first_low + at) * sizeof(std::int16_t),
                std::as_writable_bytes(low.first(count)));
    join(high.first(count), low.first(count), out.subspan(at, count));
  }
}

}  // namespace terrace
