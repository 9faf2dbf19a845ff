#include "runtime/train/training_state.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/half.h"
#include "runtime/model/parameter_init.h"

namespace terrace {
namespace {

// Sources are asked for so many elements at a time.
constexpr std::int64_t kGrain = 16 * 1024;

// What a chunk's state holds of each field; no bytes of a field that lies elsewhere.
struct FieldPart {
  StateField field;
  StatePart part;
};

std::array<FieldPart, 3> parts_of(const StateLayout& layout) {
  return {{{StateField::kMoment1, layout.moment1},
           {StateField::kMoment2, layout.moment2},
           {StateField::kMaster, layout.master}}};
}

// What is stored of exact values, in fewer bits.
void narrow(std::span<const float> exact, DType dtype, std::byte* out) {
  TERRACE_CHECK(dtype == DType::kBF16 || dtype == DType::kI16);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const SplitFloat parts = split(exact[i]);
    if (dtype == DType::kBF16) {
      reinterpret_cast<Bf16*>(out)[i] = parts.high;
    } else {
      reinterpret_cast<std::int16_t*>(out)[i] = parts.remainder;
    }
  }
}

}  // namespace

void RandomState::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                       std::span<float> out) const {
  if (field != StateField::kMaster) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  for_each_tensor_part(
      unit, begin, out,
      [this](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        init_parameter(tensor, seed_, first, part);
      });
}

void WeightState::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                       std::span<float> out) const {
  if (field != StateField::kMaster) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  for_each_tensor_part(unit, begin, out,
                       [this](const ParameterTensor& tensor, std::int64_t first,
                              std::span<float> part) { directory_.read(tensor, first, part); });
}

void TrainingState::fill_from(const StateSource& source, WorkerArena& workers) {
  for (const UnitLayout& unit : layout_) {
    const auto number = static_cast<std::int32_t>(unit.index);
    for (std::int64_t chunk = 0; chunk < model_.chunks(number); ++chunk) {
      fill_parameters(source, unit, chunk, workers);
      fill_state(source, unit, chunk, workers);
    }
  }
}

void TrainingState::fill_parameters(const StateSource& source, const UnitLayout& unit,
                                    std::int64_t chunk, WorkerArena& workers) {
  const Target target = {StateField::kMaster, model_.compute_type};
  homes_.write(HomeKind::kParameters, static_cast<std::int32_t>(unit.index), chunk,
               [&](std::size_t first, std::span<std::byte> piece) {
                 const auto at = static_cast<std::int64_t>(first / model_.parameter_bytes());
                 fill_piece(source, unit, target, chunk * model_.chunk_elements + at, piece,
                            workers);
               });
}

void TrainingState::fill_state(const StateSource& source, const UnitLayout& unit,
                               std::int64_t chunk, WorkerArena& workers) {
  const auto number = static_cast<std::int32_t>(unit.index);
  const auto parts = parts_of(model_.state_format.layout(model_.chunk_size(number, chunk)));
  homes_.write(HomeKind::kState, number, chunk, [&](std::size_t first, std::span<std::byte> piece) {
    for (const auto& [field, part] : parts) {  // a piece may reach from one part into the next
      const std::size_t begin = std::max(first, part.begin);
      const std::size_t end = std::min(first + piece.size(), part.end());
      if (begin >= end) continue;
      const auto at = static_cast<std::int64_t>((begin - part.begin) / size_of(part.dtype));
      fill_piece(source, unit, {field, part.dtype}, chunk * model_.chunk_elements + at,
                 piece.subspan(begin - first, end - begin), workers);
    }
  });
}

void TrainingState::fill_piece(const StateSource& source, const UnitLayout& unit, Target target,
                               std::int64_t begin, std::span<std::byte> piece,
                               WorkerArena& workers) {
  const std::size_t width = size_of(target.dtype);
  const auto count = static_cast<std::int64_t>(piece.size() / width);
  workers.parallel_for((count + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
    const std::int64_t from = task * kGrain;
    const auto size = static_cast<std::size_t>(std::min(kGrain, count - from));
    std::byte* const out = piece.data() + static_cast<std::size_t>(from) * width;
    if (target.dtype == DType::kF32) {
      source.read(target.field, unit, begin + from, {reinterpret_cast<float*>(out), size});
      return;
    }
    std::array<float, kGrain> exact;
    source.read(target.field, unit, begin + from, std::span(exact).first(size));
    narrow(std::span(exact).first(size), target.dtype, out);
  });
}

void TrainingState::read(StateField field, std::int32_t unit, std::int64_t begin,
                         std::span<float> out) {
  std::int64_t at = begin;
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  while (at < end) {
    const std::int64_t chunk = at / model_.chunk_elements;
    const std::int64_t chunk_begin = chunk * model_.chunk_elements;
    const std::int64_t stop = std::min(end, chunk_begin + model_.chunk_size(unit, chunk));
    read_chunk(
        field, unit, chunk, at - chunk_begin,
        out.subspan(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(stop - at)));
    at = stop;
  }
}

void TrainingState::read_chunk(StateField field, std::int32_t unit, std::int64_t chunk,
                               std::int64_t begin, std::span<float> out) {
  const MasterForm form = model_.state_format.master;
  if (field == StateField::kMaster && form == MasterForm::kParameter) {
    homes_.read(HomeKind::kParameters, unit, chunk, static_cast<std::size_t>(begin) * sizeof(float),
                std::as_writable_bytes(out));
    return;
  }
  if (field == StateField::kMaster && form == MasterForm::kSplit) {
    return read_split_masters(unit, chunk, begin, out);
  }
  const StateLayout layout = model_.state_format.layout(model_.chunk_size(unit, chunk));
  const StatePart& part = field == StateField::kMoment1   ? layout.moment1
                          : field == StateField::kMoment2 ? layout.moment2
                                                          : layout.master;
  const std::size_t first = part.begin + static_cast<std::size_t>(begin) * sizeof(float);
  homes_.read(HomeKind::kState, unit, chunk, first, std::as_writable_bytes(out));
}

void TrainingState::read_split_masters(std::int32_t unit, std::int64_t chunk, std::int64_t begin,
                                       std::span<float> out) {
  const std::size_t remainders =
      model_.state_format.layout(model_.chunk_size(unit, chunk)).master.begin;
  std::vector<Bf16> high(std::min(out.size(), static_cast<std::size_t>(kGrain)));
  std::vector<std::int16_t> low(high.size());
  for (std::size_t at = 0; at < out.size(); at += high.size()) {
    const std::size_t count = std::min(high.size(), out.size() - at);
    const std::size_t first = (static_cast<std::size_t>(begin) + at) * sizeof(Bf16);
    homes_.read(HomeKind::kParameters, unit, chunk, first,
                std::as_writable_bytes(std::span(high).first(count)));
    homes_.read(HomeKind::kState, unit, chunk, remainders + first,
                std::as_writable_bytes(std::span(low).first(count)));
    for (std::size_t i = 0; i < count; ++i) out[at + i] = join({high[i], low[i]});
  }
}

}  // namespace terrace
