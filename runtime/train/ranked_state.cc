#include "runtime/train/ranked_state.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

template <typename Visit>
void RankedState::for_each_part(const Request& request, Visit visit) const {
  const UnitLayout& unit = state_.layout().at(static_cast<std::size_t>(request.unit));
  for (const ParameterTensor& tensor : unit.tensors) {
    const TensorSlice& slice = tensor.slice;
    const auto within = [&slice](std::int64_t element) {
      return std::clamp<std::int64_t>(element - slice.whole_offset, 0, slice.whole_elements);
    };
    const std::int64_t begin = within(request.begin);
    const std::int64_t end = within(request.begin + request.count);
    if (begin == end) continue;
    for (std::int32_t rank = 0; rank < slice.ranks; ++rank) {
      const std::int64_t first = slice.before(begin, rank);
      const std::int64_t count = slice.before(end, rank) - first;
      for_each_shard(request, {0, tensor.offset + first, count, &tensor, rank}, visit);
    }
  }
}

template <typename Visit>
void RankedState::for_each_shard(const Request& request, Part part, Visit visit) const {
  const std::int32_t stage =
      model_.pipeline.stages == 1 ? 0 : model_.pipeline.stage_of(request.unit);
  const std::int64_t end = part.begin + part.count;
  while (part.begin < end) {
    const std::int32_t group = model_.group_at(request.unit, part.begin);
    const std::int64_t of_group = model_.groups.at(static_cast<std::size_t>(group)).first_element;
    const std::int64_t chunk = model_.chunk_of(group, part.begin - of_group);
    const std::int64_t chunk_begin = of_group + model_.chunk_begin(group, chunk);
    const std::int64_t shard = model_.zero.of_optimizer() ? model_.shard(group, chunk, 0).count
                                                          : model_.chunk_size(group, chunk);
    const auto data_rank = static_cast<std::int32_t>((part.begin - chunk_begin) / shard);
    part.rank = model_.rank_of(stage, data_rank, part.tensor_rank);
    part.count = std::min(end, chunk_begin + (data_rank + 1) * shard) - part.begin;
    visit(part);
    part.begin += part.count;
  }
}

void RankedState::scatter(const Part& part, const Request& request, std::span<float> out) const {
  const TensorSlice& slice = part.tensor->slice;
  const std::int64_t first = part.begin - part.tensor->offset;
  for (std::int64_t i = 0; i < part.count;) {
    const std::int64_t run = std::min(part.count - i, slice.run - (first + i) % slice.run);
    const std::int64_t whole =
        slice.whole_offset + slice.whole_of(first + i, part.tensor_rank) - request.begin;
    std::copy_n(piece_.begin() + i, run, out.begin() + whole);
    i += run;
  }
}

void RankedState::share(Request& request) {
  ranks_->broadcast(view(std::as_writable_bytes(std::span(&request, 1))), 0, {});
}

void RankedState::read(StateField field, std::int32_t unit, std::int64_t begin,
                       std::span<float> out) {
  if (ranks_ == nullptr) return state_.read(field, unit, begin, out);
  TERRACE_CHECK_EQ(ranks_->rank(), 0);
  if (out.empty()) return;
  Request request{static_cast<std::int32_t>(field), unit, begin,
                  static_cast<std::int64_t>(out.size())};
  share(request);                // also a sign of life: all reads may take longer than ranks wait
  std::ranges::fill(out, 0.0F);  // padding
  for_each_part(request, [&](const Part& part) {
    piece_.resize(static_cast<std::size_t>(part.count));
    if (part.rank == 0) {
      state_.read(field, unit, part.begin, piece_);
    } else {
      ranks_->recv(view(std::span(piece_)), part.rank, {});
    }
    scatter(part, request, out);
  });
}

void RankedState::read_errors(std::int32_t rank, std::uint64_t begin, std::span<std::byte> out) {
  if (ranks_ == nullptr) return state_.read_errors(begin, out);
  TERRACE_CHECK_EQ(ranks_->rank(), 0);
  if (out.empty()) return;
  Request request{kErrors, rank, static_cast<std::int64_t>(begin), std::ssize(out)};
  share(request);
  if (rank == 0) {
    state_.read_errors(begin, out);
  } else {
    ranks_->recv(view(out), rank, {});
  }
}

void RankedState::end_reads() {
  if (ranks_ == nullptr) return;
  Request request;
  share(request);
}

void RankedState::send_elements(const Request& request) {
  for_each_part(request, [&](const Part& part) {
    if (part.rank != ranks_->rank()) return;
    piece_.resize(static_cast<std::size_t>(part.count));
    state_.read(static_cast<StateField>(request.field), request.unit, part.begin, piece_);
    ranks_->send(view(std::span(piece_)), 0, {});
  });
}

void RankedState::send_errors(const Request& request) {
  if (request.unit != ranks_->rank()) return;
  errors_.resize(static_cast<std::size_t>(request.count));
  state_.read_errors(static_cast<std::size_t>(request.begin), errors_);
  ranks_->send(view(std::span(errors_)), 0, {});
}

void RankedState::serve_reads() {
  for (;;) {
    Request request;
    share(request);
    if (request.count == 0) return;
    if (request.field == kErrors) {
      send_errors(request);
    } else {
      send_elements(request);
    }
  }
}

}  // namespace terrace
