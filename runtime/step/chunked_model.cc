#include "runtime/step/chunked_model.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/wire_ops.h"

namespace terrace {
namespace {

// Homes are a multiple of this, because drives transfer whole blocks.
constexpr std::size_t kByteGrain = 4096;

}  // namespace

std::int32_t ChunkedModel::rules() const {
  std::int32_t last = 0;
  for (const ParameterGroup& group : groups) last = std::max(last, group.rule);
  return last + 1;
}

std::int64_t ChunkedModel::chunks(std::int32_t group) const {
  return trained_chunks(group) +
         (groups.at(index(group)).frozen_elements + chunk_elements - 1) / chunk_elements;
}

std::int64_t ChunkedModel::trained_chunks(std::int32_t group) const {
  return (groups.at(index(group)).trained_elements() + chunk_elements - 1) / chunk_elements;
}

std::int64_t ChunkedModel::chunk_begin(std::int32_t group, std::int64_t chunk) const {
  const std::int64_t trained = trained_chunks(group);
  if (chunk < trained) return chunk * chunk_elements;
  return groups.at(index(group)).trained_elements() + (chunk - trained) * chunk_elements;
}

std::int64_t ChunkedModel::chunk_size(std::int32_t group, std::int64_t chunk) const {
  const ParameterGroup& of = groups.at(index(group));
  const bool trains = chunk < trained_chunks(group);
  const std::int64_t end = trains ? of.trained_elements() : of.padded_elements;
  return std::min(chunk_elements, end - chunk_begin(group, chunk));
}

std::int64_t ChunkedModel::chunk_of(std::int32_t group, std::int64_t element) const {
  const std::int64_t trained = groups.at(index(group)).trained_elements();
  if (element < trained) return element / chunk_elements;
  return trained_chunks(group) + (element - trained) / chunk_elements;
}

ChunkPart ChunkedModel::shard(std::int32_t group, std::int64_t chunk, std::int32_t rank) const {
  const std::int64_t count = chunk_size(group, chunk) / zero.ranks;
  return {rank * count, count};
}

std::int64_t HomePart::element_at(std::int64_t place) const {
  const std::int64_t piece = piece_elements();
  return begin + place / piece * stride + place % piece;
}

std::optional<std::int64_t> HomePart::place_of(std::int64_t element) const {
  const std::int64_t piece = pieces == 1 ? 0 : (element - begin) / stride;
  const std::int64_t in_piece = element - begin - piece * stride;
  if (in_piece < 0 || in_piece >= piece_elements() || piece >= pieces) return std::nullopt;
  return piece * piece_elements() + in_piece;
}

bool HomePart::has_run(std::int64_t first, std::int64_t end) const {
  const std::optional<std::int64_t> place = place_of(first);
  return place.has_value() && *place % piece_elements() + end - first <= piece_elements();
}

std::size_t ChunkedModel::state_bytes(StateClass state, std::int32_t group,
                                      std::int64_t elements) const {
  switch (state) {
    case StateClass::kParameters:
      return static_cast<std::size_t>(elements) * parameter_bytes(group);
    case StateClass::kGradients:
      return static_cast<std::size_t>(elements) * size_of(gradient_type);
    case StateClass::kOptimizer:
      return format_of(group).bytes(elements);
    case StateClass::kErrors:
      return round_up(coded_bytes(WireForm::kInt8, elements), kByteGrain);
    case StateClass::kActivations:
      break;
  }
  TERRACE_CHECK(false);
  return 0;
}

std::int64_t ChunkedModel::home_chunks(StateClass state, std::int32_t group) const {
  return info_of(state).use == StateUse::kEveryPass ? chunks(group) : trained_chunks(group);
}

HomePart ChunkedModel::home_part(StateClass state, std::int32_t group, std::int64_t chunk) const {
  if (!zero.of(state)) return {.count = chunk_size(group, chunk)};
  const std::int32_t pieces = zero.in_islands(state) ? zero.islands : 1;
  const ChunkPart first = shard(group, chunk, zero.rank % zero.parts(state));
  return {.begin = first.begin,
          .count = pieces * first.count,
          .pieces = pieces,
          .stride = zero.parts(state) * first.count};
}

std::size_t ChunkedModel::home_bytes(StateClass state, std::int32_t group,
                                     std::int64_t chunk) const {
  return state_bytes(state, group, home_part(state, group, chunk).count);
}

std::size_t ChunkedModel::home_offset(StateClass state, std::int32_t group,
                                      std::int64_t chunk) const {
  std::size_t bytes = 0;
  for (std::int64_t before = 0; before < chunk; ++before) bytes += home_bytes(state, group, before);
  return bytes;
}

}  // namespace terrace
