#include "runtime/train/ranked_state.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

bool RankedState::is_here() const {
  return model_.pipeline.stages == 1 && !model_.zero.of_optimizer();
}

template <typename Visit>
void RankedState::for_each_part(const Request& request, Visit visit) const {
  const std::int32_t stage =
      model_.pipeline.stages == 1 ? 0 : model_.pipeline.stage_of(request.unit);
  const std::int64_t end = request.begin + request.count;
  for (std::int64_t at = request.begin; at < end;) {
    const std::int64_t chunk = at / model_.chunk_elements;
    const std::int64_t chunk_begin = chunk * model_.chunk_elements;
    const std::int64_t part = model_.zero.of_optimizer()
                                  ? model_.shard(request.unit, chunk, 0).count
                                  : model_.chunk_size(request.unit, chunk);
    const auto rank = static_cast<std::int32_t>((at - chunk_begin) / part);
    const std::int64_t stop = std::min(end, chunk_begin + (rank + 1) * part);
    visit(model_.rank_of(stage, rank), at, stop - at);
    at = stop;
  }
}

void RankedState::share(Request& request) {
  ranks_->broadcast(view(std::as_writable_bytes(std::span(&request, 1))), 0, {});
}

void RankedState::read(StateField field, std::int32_t unit, std::int64_t begin,
                       std::span<float> out) {
  if (is_here()) return state_.read(field, unit, begin, out);
  TERRACE_CHECK_EQ(ranks_->rank(), 0);
  if (out.empty()) return;
  Request request{static_cast<std::int32_t>(field), unit, begin,
                  static_cast<std::int64_t>(out.size())};
  share(request);
  for_each_part(request, [&](int rank, std::int64_t first, std::int64_t count) {
    const std::span<float> part =
        out.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(count));
    if (rank == 0) {
      state_.read(field, unit, first, part);
    } else {
      ranks_->recv(view(part), rank, {});
    }
  });
}

void RankedState::end_reads() {
  if (ranks_ == nullptr) return;
  Request request;
  share(request);
}

void RankedState::serve_reads() {
  for (;;) {
    Request request;
    share(request);
    if (request.count == 0) return;
    for_each_part(request, [&](int rank, std::int64_t first, std::int64_t count) {
      if (rank != ranks_->rank()) return;
      piece_.resize(static_cast<std::size_t>(count));
      state_.read(static_cast<StateField>(request.field), request.unit, first, piece_);
      ranks_->send(view(std::span(piece_)), 0, {});
    });
  }
}

}  // namespace terrace
