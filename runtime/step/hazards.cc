#include "runtime/step/hazards.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/check.h"

namespace terrace {
namespace {

// An op in the list taken twice: op + iteration * number of ops.
using Moment = std::int64_t;

struct Segment {
  std::size_t end = 0;
  Moment writer = -1;
  std::vector<Moment> readers;  // since that write
};

// The last accesses to each byte of one tier.
class History {
 public:
  using Segments = std::map<std::size_t, Segment>;

  // Calls visit(segment) for every segment of [begin, end), in order. The range is not empty.
  // Returns the first segment.
  template <typename Visit>
  Segments::iterator visit(std::size_t begin, std::size_t end, Visit visit) {
    auto it = cut(begin, end);
    auto first = segments_.end();
    for (std::size_t at = begin; at < end; ++it) {
      if (it == segments_.end() || it->first > at) {
        const std::size_t stop = it == segments_.end() ? end : std::min(end, it->first);
        it = segments_.emplace_hint(it, at, Segment{stop, -1, {}});
      }
      if (at == begin) first = it;
      visit(it->second);
      at = it->second.end;
    }
    return first;
  }

  // Does the same. Afterwards the whole range is one segment, written by `writer`.
  template <typename Visit>
  void write(std::size_t begin, std::size_t end, Moment writer, Visit visit_segment) {
    const auto written = visit(begin, end, visit_segment);
    auto behind = std::next(written);
    while (behind != segments_.end() && behind->first < end) behind = segments_.erase(behind);
    written->second.end = end;
    written->second.writer = writer;
    written->second.readers.clear();
  }

 private:
  // Cuts the segments so that none reaches over the begin or the end. Returns the first segment at
  // or behind the begin. In most cases exactly these bytes were used before, and nothing is cut.
  Segments::iterator cut(std::size_t begin, std::size_t end) {
    const auto known = segments_.lower_bound(begin);
    const bool is_there = known != segments_.end() && known->first == begin;
    if (is_there && known->second.end == end) return known;
    if (!is_there) split(begin);
    split(end);
    return segments_.lower_bound(begin);
  }

  void split(std::size_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    --it;
    if (it->first >= at || it->second.end <= at) return;
    Segment right = it->second;
    it->second.end = at;
    segments_.emplace(at, std::move(right));
  }

  Segments segments_;
};

class EdgeMaker {
 public:
  explicit EdgeMaker(Program& program)
      : program_(program), count_(static_cast<Moment>(program.ops.size())) {}

  void run() {
    for (Moment now = 0; now < 2 * count_; ++now) take(now);
  }

 private:
  const Op& op_of(Moment moment) const {
    return program_.ops[moment < count_ ? moment : moment - count_];
  }

  void take(Moment now) {
    waits_.clear();
    const Op& op = op_of(now);
    for (const Access& access : op.reads) {
      const auto [begin, end] = place_of(access);
      if (begin == end) continue;
      history(access).visit(begin, end, [&](Segment& segment) {
        waits_.push_back(segment.writer);
        add_reader(segment, now);
      });
    }
    for (const Access& access : op.writes) {
      const auto [begin, end] = place_of(access);
      if (begin == end) continue;
      history(access).write(begin, end, now, [&](Segment& segment) {
        waits_.push_back(segment.writer);
        waits_.insert(waits_.end(), segment.readers.begin(), segment.readers.end());
      });
    }
    if (now >= count_) keep(now);
  }

  // Adds a reader. Only the latest reader on an in-order lane matters.
  void add_reader(Segment& segment, Moment now) {
    const Lane lane = op_of(now).lane;
    if (completes_in_order(lane)) {
      std::erase_if(segment.readers, [&](Moment other) { return op_of(other).lane == lane; });
    }
    if (segment.readers.empty() || segment.readers.back() != now) segment.readers.push_back(now);
  }

  // Turns the moments that `now` waits for into edges.
  void keep(Moment now) {
    Op& op = program_.ops[now % count_];
    std::sort(waits_.begin(), waits_.end(), std::greater<>());
    waits_.erase(std::unique(waits_.begin(), waits_.end()), waits_.end());
    std::array<bool, kLaneCount> has_later{};
    if (completes_in_order(op.lane)) has_later.at(static_cast<std::size_t>(op.lane)) = true;
    for (const Moment moment : waits_) {
      if (moment < 0 || moment == now) continue;
      const Lane lane = op_of(moment).lane;
      if (completes_in_order(lane)) {
        bool& later = has_later.at(static_cast<std::size_t>(lane));
        if (later) continue;
        later = true;
      }
      op.after.push_back({static_cast<OpId>(moment % count_), moment < count_ ? 1 : 0});
    }
  }

  std::pair<std::size_t, std::size_t> place_of(const Access& access) const {
    const Buffer& buffer = program_.buffers.at(access.buffer);
    if (buffer.tier == Tier::kNvme) return {buffer.offset, buffer.offset + 1};
    const std::size_t begin = buffer.offset + access.offset;
    return {begin, begin + access.size_bytes};
  }

  History& history(const Access& access) {
    return history_.at(static_cast<std::size_t>(program_.buffers.at(access.buffer).tier));
  }

  Program& program_;
  Moment count_;
  std::array<History, kTierCount> history_;
  std::vector<Moment> waits_;
};

}  // namespace

void add_edges(Program& program) {
  TERRACE_CHECK_EQ(program.repetition.times, 1);
  for (Op& op : program.ops) op.after.clear();
  EdgeMaker(program).run();
}

}  // namespace terrace
