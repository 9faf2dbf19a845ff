#include "runtime/train/training_state.h"

#include <algorithm>
#include <array>

#include "base/half.h"
#include "runtime/model/parameter_init.h"

namespace terrace {
namespace {

// Sources are asked for so many elements at a time.
constexpr std::int64_t kGrain = 16 * 1024;

// Where the fields of a chunk of n elements lie in its state: see HomeKind::kState.
std::int64_t field_number(StateField field) {
  return field == StateField::kMoment1 ? 0 : (field == StateField::kMoment2 ? 1 : 2);
}
StateField field_of_number(std::int64_t number) {
  constexpr std::array kFields = {StateField::kMoment1, StateField::kMoment2, StateField::kMaster};
  return kFields.at(static_cast<std::size_t>(number));
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
  const std::int64_t chunk_begin = chunk * model_.chunk_elements;
  const std::size_t width = model_.parameter_bytes();
  const bool narrow = model_.compute_type == DType::kBF16;
  homes_.write(HomeKind::kParameters, static_cast<std::int32_t>(unit.index), chunk,
               [&](std::size_t first, std::span<std::byte> piece) {
                 const auto begin = chunk_begin + static_cast<std::int64_t>(first / width);
                 const auto count = static_cast<std::int64_t>(piece.size() / width);
                 workers.parallel_for((count + kGrain - 1) / kGrain, [&](std::int64_t part, int) {
                   const std::int64_t from = part * kGrain;
                   const auto size = static_cast<std::size_t>(std::min(kGrain, count - from));
                   if (!narrow) {
                     source.read(StateField::kMaster, unit, begin + from,
                                 {reinterpret_cast<float*>(piece.data()) + from, size});
                     return;
                   }
                   std::array<float, kGrain> exact;
                   source.read(StateField::kMaster, unit, begin + from,
                               std::span(exact).first(size));
                   auto* out = reinterpret_cast<Bf16*>(piece.data()) + from;
                   for (std::size_t i = 0; i < size; ++i) out[i] = to_bf16_ties_away(exact[i]);
                 });
               });
}

void TrainingState::fill_state(const StateSource& source, const UnitLayout& unit,
                               std::int64_t chunk, WorkerArena& workers) {
  const auto number = static_cast<std::int32_t>(unit.index);
  const std::int64_t chunk_begin = chunk * model_.chunk_elements;
  const std::int64_t elements = model_.chunk_size(number, chunk);
  homes_.write(HomeKind::kState, number, chunk, [&](std::size_t first, std::span<std::byte> piece) {
    const auto begin = static_cast<std::int64_t>(first / sizeof(float));
    const auto count = static_cast<std::int64_t>(piece.size() / sizeof(float));
    auto* out = reinterpret_cast<float*>(piece.data());
    workers.parallel_for((count + kGrain - 1) / kGrain, [&](std::int64_t part, int) {
      std::int64_t at = begin + part * kGrain;
      const std::int64_t end = std::min(begin + (part + 1) * kGrain, begin + count);
      while (at < end) {  // a piece may reach from one field into the next
        const std::int64_t field = at / elements;
        const std::int64_t stop = std::min(end, (field + 1) * elements);
        source.read(field_of_number(field), unit, chunk_begin + at - field * elements,
                    {out + (at - begin), static_cast<std::size_t>(stop - at)});
        at = stop;
      }
    });
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
  if (field == StateField::kMaster && !model_.has_master) {
    homes_.read(HomeKind::kParameters, unit, chunk, static_cast<std::size_t>(begin) * sizeof(float),
                std::as_writable_bytes(out));
    return;
  }
  const std::int64_t first = field_number(field) * model_.chunk_size(unit, chunk) + begin;
  homes_.read(HomeKind::kState, unit, chunk, static_cast<std::size_t>(first) * sizeof(float),
              std::as_writable_bytes(out));
}

}  // namespace terrace
