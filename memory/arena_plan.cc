#include "memory/arena_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"
#include "memory/sorted_keys.h"

// The first attempt places items as an allocator would, in order of time, each in the lowest free
// gap. A step's buffers behave much like a stack, and for a stack this reaches the lower bound, in
// a time that hardly grows faster than the number of items. If it does not, items are placed one
// after the other in some order, each in the lowest or the tightest gap between the earlier placed
// items that live at the same time. No single order is good for all programs, so several are tried.
// Then the items that stick out above the lower bound are moved to the front, a few times.
namespace terrace {
namespace {

// No further attempt begins after this many looks at placed items. Unlike time, this is repeatable.
constexpr std::int64_t kLooksMax = 80'000'000;
constexpr int kRepairRoundsMax = 40;
// Repairs end after this many rounds in a row that gained nothing. Rounds that help do so soon.
constexpr int kRepairRoundsInVain = 6;
constexpr std::size_t kBucketCount = 128;
constexpr std::size_t kOrderCount = 7;  // the number of orders tried

// A span of time in ranks, which are positions among all begins and ends.
struct Span {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

struct Item {
  std::size_t size = 0;
  Span hull;                   // from the first begin to the last end
  std::uint32_t first = 0;     // index of the first of its spans
  std::uint32_t count = 0;     // number of its spans
  std::int64_t length = 0;     // in the caller's time, holes left out
  std::size_t contention = 0;  // the most bytes alive at any one time of its life
};

struct Problem {
  std::vector<Item> items;
  std::vector<Span> spans;
  std::int32_t ranks = 0;
  std::size_t live_bytes = 0;

  std::span<const Span> spans_of(const Item& item) const {
    return std::span(spans).subspan(item.first, item.count);
  }

  bool meet(const Item& a, const Item& b) const {
    if (a.hull.begin >= b.hull.end || b.hull.begin >= a.hull.end) return false;
    if (a.count == 1 && b.count == 1) return true;
    const auto in_a = spans_of(a);
    const auto in_b = spans_of(b);
    for (std::size_t i = 0, j = 0; i < in_a.size() && j < in_b.size();) {
      if (in_a[i].begin < in_b[j].end && in_b[j].begin < in_a[i].end) return true;
      if (in_a[i].end <= in_b[j].end) {
        ++i;
      } else {
        ++j;
      }
    }
    return false;
  }
};

std::vector<std::int64_t> sorted_times(std::span<const PackItem> items) {
  std::vector<std::int64_t> times;
  for (const PackItem& item : items) {
    for (const LifeInterval& interval : item.live) {
      times.push_back(interval.begin);
      times.push_back(interval.end);
    }
  }
  std::ranges::sort(times);
  times.erase(std::ranges::unique(times).begin(), times.end());
  return times;
}

Item read_item(const PackItem& from, std::size_t alignment, std::span<const std::int64_t> times,
               std::vector<Span>& spans) {
  const auto rank_of = [times](std::int64_t time) {
    return static_cast<std::int32_t>(std::ranges::lower_bound(times, time) - times.begin());
  };
  Item item;
  item.size = round_up(from.size_bytes, alignment);
  item.first = static_cast<std::uint32_t>(spans.size());
  for (const LifeInterval& interval : from.live) {
    TERRACE_CHECK_LE(interval.begin, interval.end);
    const Span span = {rank_of(interval.begin), rank_of(interval.end)};
    if (span.begin == span.end) continue;
    if (item.count != 0) TERRACE_CHECK_LE(spans.back().end, span.begin);
    spans.push_back(span);
    ++item.count;
    item.length += interval.end - interval.begin;
  }
  if (item.count != 0) item.hull = {spans[item.first].begin, spans.back().end};
  return item;
}

// Fills in how many bytes are alive at each time: the lower bound, and each item's contention.
void measure_contention(Problem& problem) {
  std::vector<std::size_t> live(static_cast<std::size_t>(problem.ranks) + 1);
  for (const Item& item : problem.items) {
    for (const Span& span : problem.spans_of(item)) {
      live[span.begin] += item.size;
      live[span.end] -= item.size;  // wraps, and the running sum wraps back
    }
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  problem.live_bytes = *std::ranges::max_element(live);
  // With maxima over power-of-two windows, a range needs only two looks.
  std::vector<std::vector<std::size_t>> windows = {std::move(live)};
  for (std::size_t width = 1; 2 * width <= windows[0].size(); width *= 2) {
    const auto& half = windows.back();
    std::vector<std::size_t> whole(half.size() - width);
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = std::max(half[i], half[i + width]);
    windows.push_back(std::move(whole));
  }
  for (Item& item : problem.items) {
    for (const Span& span : problem.spans_of(item)) {
      const auto level = static_cast<std::size_t>(
          std::bit_width(static_cast<std::uint32_t>(span.end - span.begin)) - 1);
      const auto& window = windows[level];
      item.contention =
          std::max({item.contention, window[span.begin], window[span.end - (1 << level)]});
    }
  }
}

Problem read_problem(std::span<const PackItem> items, std::size_t alignment) {
  Problem problem;
  const std::vector<std::int64_t> times = sorted_times(items);
  problem.ranks = static_cast<std::int32_t>(times.size());
  problem.items.reserve(items.size());
  for (const PackItem& item : items) {
    problem.items.push_back(read_item(item, alignment, times, problem.spans));
  }
  measure_contention(problem);
  return problem;
}

// Free places below the highest end ever taken, as an allocator keeps them.
class Gaps {
 public:
  std::size_t take(std::size_t size) {
    const auto fits = [&](const auto& gap) {
      ++looks_;
      return gap.second >= size;
    };
    const auto gap = std::ranges::find_if(sizes_, fits);
    if (gap == sizes_.end()) return take_at_top(size);
    const auto [offset, free] = *gap;
    sizes_.erase(gap);
    if (free > size) sizes_.emplace(offset + size, free - size);
    return offset;
  }

  void give_back(std::size_t offset, std::size_t size) {
    auto gap = sizes_.emplace(offset, size).first;
    if (const auto next = std::next(gap);
        next != sizes_.end() && next->first == offset + gap->second) {
      gap->second += next->second;
      sizes_.erase(next);
    }
    if (gap == sizes_.begin()) return;
    const auto before = std::prev(gap);
    if (before->first + before->second != gap->first) return;
    before->second += gap->second;
    sizes_.erase(gap);
  }

  std::size_t top() const { return top_; }
  std::int64_t looks() const { return looks_; }

 private:
  // Takes a place above everything that is taken now.
  std::size_t take_at_top(std::size_t size) {
    std::size_t offset = top_;
    if (!sizes_.empty()) {
      const auto last = std::prev(sizes_.end());
      if (last->first + last->second == top_) {
        offset = last->first;
        sizes_.erase(last);
      }
    }
    top_ = offset + size;
    return offset;
  }

  std::map<std::size_t, std::size_t> sizes_;  // by offset; no two touch
  std::size_t top_ = 0;
  std::int64_t looks_ = 0;
};

enum class Fit : std::uint8_t { kLowest, kTightest };

using Order = std::vector<std::uint32_t>;

// One attempt. It holds the items placed so far by offset, all together and by stretches of time.
class Placer {
 public:
  explicit Placer(const Problem& problem)
      : problem_(problem),
        ranks_per_bucket_(std::max<std::int32_t>(
            1, static_cast<std::int32_t>(divide_up(problem.ranks, kBucketCount)))),
        placed_(problem.items.size()) {}

  void reset() {
    all_.clear();
    for (SortedKeys& bucket : buckets_) bucket.clear();
    packed_bytes_ = 0;
  }

  void place_at(std::uint32_t index, std::size_t offset) {
    const Item& item = problem_.items[index];
    packed_bytes_ = std::max(packed_bytes_, offset + item.size);
    placed_[index] = {offset, offset + item.size, item.hull};
    const PlacedKey key{offset, index};
    all_.insert(key);
    for_each_bucket(item, [&](SortedKeys& bucket) { bucket.insert(key); });
  }

  std::size_t place(std::uint32_t index, Fit fit) {
    const std::size_t offset = find(problem_.items[index], fit);
    place_at(index, offset);
    return offset;
  }

  bool is_free(std::uint32_t index, std::size_t offset) const {
    const Item& item = problem_.items[index];
    return !all_.any_of([&](const PlacedKey& other) {
      const Placed& placed = placed_[other.second];
      return placed.offset < offset + item.size && offset < placed.end && meets(item, other.second);
    });
  }

  std::size_t packed_bytes() const { return packed_bytes_; }
  std::int64_t looks() const { return looks_; }

 private:
  struct Placed {
    std::size_t offset = 0;
    std::size_t end = 0;
    Span hull;
  };

  // Visits every bucket that a span of the item touches, each once.
  template <typename Visit>
  void for_each_bucket(const Item& item, Visit visit) {
    std::int32_t next = 0;
    for (const Span& span : problem_.spans_of(item)) {
      const std::int32_t last = (span.end - 1) / ranks_per_bucket_;
      for (next = std::max(next, span.begin / ranks_per_bucket_); next <= last; ++next) {
        visit(buckets_[static_cast<std::size_t>(next)]);
      }
    }
  }

  bool meets(const Item& item, std::uint32_t other) const {
    const Span& hull = placed_[other].hull;
    return item.hull.begin < hull.end && hull.begin < item.hull.end &&
           problem_.meet(item, problem_.items[other]);
  }

  // Looks by offset at all placed items that may meet the item: in one bucket, a few, or all.
  template <typename Look>
  bool any_candidate(const Item& item, Look look) {
    std::size_t total = 0;
    int touched = 0;
    const SortedKeys* last = nullptr;
    for_each_bucket(item, [&](const SortedKeys& bucket) {
      total += bucket.size();
      ++touched;
      last = &bucket;
    });
    if (touched == 1) return last->any_of(look);
    if (kMergeCost * total > all_.size()) return all_.any_of(look);
    merge_buckets(item);
    looks_ += static_cast<std::int64_t>(kMergeCost * total);
    return std::ranges::any_of(merged_, look);
  }

  // Fills merged_ with the keys of the item's buckets, by offset; some keys appear several times.
  void merge_buckets(const Item& item) {
    merged_.clear();
    run_ends_.assign(1, 0);
    for_each_bucket(item, [&](const SortedKeys& bucket) {
      if (bucket.size() == 0) return;
      bucket.append_to(merged_);
      run_ends_.push_back(merged_.size());
    });
    while (run_ends_.size() > 2) {
      scratch_.resize(merged_.size());
      std::size_t kept = 1;
      for (std::size_t r = 0; r + 1 < run_ends_.size(); r += 2) {
        const std::size_t end_at = run_ends_[std::min(r + 2, run_ends_.size() - 1)];
        PlacedKey* const begin = merged_.data() + run_ends_[r];
        PlacedKey* const middle = merged_.data() + run_ends_[r + 1];
        std::merge(begin, middle, middle, merged_.data() + end_at, scratch_.data() + run_ends_[r]);
        run_ends_[kept++] = end_at;
      }
      run_ends_.resize(kept);
      std::swap(merged_, scratch_);
    }
  }

  std::size_t find(const Item& item, Fit fit) {
    Gap gap;
    const bool is_found = any_candidate(
        item, [&](const PlacedKey& other) { return look(item, other.second, fit, gap); });
    if (is_found) return gap.offset;
    return gap.tightest == std::numeric_limits<std::size_t>::max() ? gap.top : gap.offset;
  }

  // The tightest gap so far, and the highest end of the items seen so far that meet the item.
  struct Gap {
    std::size_t top = 0;
    std::size_t tightest = std::numeric_limits<std::size_t>::max();
    std::size_t offset = 0;
  };

  // Goes on to the next placed item. Returns whether the gap found is the one that is wanted.
  bool look(const Item& item, std::uint32_t other, Fit fit, Gap& gap) {
    ++looks_;
    const Placed& placed = placed_[other];
    if (placed.end <= gap.top || !meets(item, other)) return false;
    if (placed.offset >= gap.top + item.size && placed.offset - gap.top < gap.tightest) {
      gap.tightest = placed.offset - gap.top;
      gap.offset = gap.top;
      if (fit == Fit::kLowest || gap.tightest == item.size) return true;
    }
    gap.top = placed.end;
    return false;
  }

  // The cost of sorting in one more candidate, in looks.
  static constexpr std::size_t kMergeCost = 8;

  const Problem& problem_;
  const std::int32_t ranks_per_bucket_;
  std::vector<Placed> placed_;  // by item
  SortedKeys all_;              // by offset, as are the next two
  std::array<SortedKeys, kBucketCount> buckets_;
  std::vector<PlacedKey> merged_;
  std::vector<PlacedKey> scratch_;     // scratch for merging
  std::vector<std::size_t> run_ends_;  // ends of the sorted runs in merged_ while it is merged
  std::size_t packed_bytes_ = 0;
  std::int64_t looks_ = 0;
};

// Tries orders, and remembers the best result.
class Search {
 public:
  Search(const Problem& problem, std::span<const PackItem> items, std::size_t alignment,
         std::size_t enough_bytes)
      : problem_(problem), placer_(problem), items_(items), enough_bytes_(enough_bytes) {
    for (std::uint32_t i = 0; i < items.size(); ++i) {
      const Item& item = problem.items[i];
      if (items[i].fixed_offset) {
        TERRACE_CHECK_EQ(*items[i].fixed_offset % alignment, 0U);
        if (item.size == 0 || item.count == 0) continue;
        fixed_end_ = std::max(fixed_end_, *items[i].fixed_offset + item.size);
        fixed_.push_back(i);
      } else if (item.size != 0 && item.count != 0) {
        free_.push_back(i);
      }
    }
    place_fixed(true);
  }

  PackResult run() { return lowest(in_order_of_time()); }

  bool fits() {
    PackResult in_time = in_order_of_time();
    return in_time.packed_bytes <= enough_bytes_ ||
           lowest(std::move(in_time)).packed_bytes <= enough_bytes_;
  }

 private:
  using OrderKey = std::array<std::int64_t, 3>;

  // Returns the lowest result of `in_time`, which has been tried, and all other attempts.
  PackResult lowest(PackResult in_time) {
    result_.live_bytes = problem_.live_bytes;
    result_.packed_bytes = std::numeric_limits<std::size_t>::max();
    if (in_time.packed_bytes <= lowest_wanted()) return in_time;
    std::array<Order, kOrderCount> orders;  // made when needed, because the first often suffices
    for (const Fit fit : {Fit::kLowest, Fit::kTightest}) {
      for (std::size_t number = 0; number < kOrderCount && !is_done(); ++number) {
        if (fit == Fit::kLowest) orders.at(number) = order_of_attempt(number);
        attempt(orders.at(number), fit, true);
      }
    }
    repair();
    return in_time.packed_bytes < result_.packed_bytes ? std::move(in_time) : std::move(result_);
  }

  void place_fixed(bool check) {
    placer_.reset();
    for (const std::uint32_t i : fixed_) {
      if (check) TERRACE_CHECK(placer_.is_free(i, *items_[i].fixed_offset));
      placer_.place_at(i, *items_[i].fixed_offset);
    }
  }

  bool is_done() const {
    return result_.packed_bytes <= lowest_wanted() ||
           (!result_.offsets.empty() && placer_.looks() > kLooksMax);
  }

  // The lower bound, or the bytes that are said to be enough.
  std::size_t lowest_wanted() const {
    return std::max({problem_.live_bytes, fixed_end_, enough_bytes_});
  }

  // Returns the free items by ascending key. Items with equal keys keep the caller's order.
  template <typename KeyOf>
  Order order_by(KeyOf key_of) const {
    std::vector<std::pair<OrderKey, std::uint32_t>> keyed;
    keyed.reserve(free_.size());
    for (const std::uint32_t i : free_) keyed.emplace_back(key_of(problem_.items[i]), i);
    std::ranges::sort(keyed);
    Order order;
    order.reserve(keyed.size());
    for (const auto& [key, i] : keyed) order.push_back(i);
    return order;
  }

  // Returns one of the orders that are tried.
  Order order_of_attempt(std::size_t number) const {
    const auto size = [](const Item& item) { return -static_cast<std::int64_t>(item.size); };
    const auto contention = [](const Item& item) {
      return -static_cast<std::int64_t>(item.contention);
    };
    const auto area = [](const Item& item) {
      // The product does not fit an integer, and the bits of a double read as an integer keep its
      // order.
      return -std::bit_cast<std::int64_t>(static_cast<double>(item.size) *
                                          static_cast<double>(item.length));
    };
    return order_by([&](const Item& i) {
      const std::array<OrderKey, kOrderCount> keys = {{{-i.length, size(i), i.hull.begin},
                                                       {size(i), -i.length, i.hull.begin},
                                                       {contention(i), area(i), i.hull.begin},
                                                       {area(i), size(i), i.hull.begin},
                                                       {contention(i), -i.length, size(i)},
                                                       {i.hull.begin, -i.length, size(i)},
                                                       {-i.hull.end, -i.length, size(i)}}};
      return keys.at(number);
    });
  }

  // Places items as an allocator does: each in the lowest gap when its life begins. Items with
  // holes in their lives come last, each in the lowest gap that is free in all parts of its life.
  // Not used where items have fixed offsets, because an allocator's gap does not take into account
  // which items come there later.
  PackResult in_order_of_time() const {
    PackResult result;
    result.live_bytes = problem_.live_bytes;
    result.packed_bytes = std::numeric_limits<std::size_t>::max();
    const auto has_holes = [this](std::uint32_t i) { return problem_.items[i].count > 1; };
    const auto holed = static_cast<std::int64_t>(std::ranges::count_if(free_, has_holes));
    if (!fixed_.empty() || holed * std::ssize(free_) > kLooksMax / 4) return result;
    result.offsets = fixed_offsets();
    Order order = order_by([](const Item& item) {
      return OrderKey{item.hull.begin, -item.length, -static_cast<std::int64_t>(item.size)};
    });
    const auto whole = std::ranges::stable_partition(order, std::not_fn(has_holes)).begin();
    const auto simple = static_cast<std::size_t>(whole - order.begin());
    result.packed_bytes = allocate(std::span(order).first(simple), result.offsets);
    if (result.packed_bytes == std::numeric_limits<std::size_t>::max()) return result;
    for (std::size_t i = simple; i < order.size(); ++i) {
      const std::size_t offset = lowest_gap(order[i], std::span(order).first(i), result.offsets);
      result.offsets[order[i]] = offset;
      result.packed_bytes = std::max(result.packed_bytes, offset + problem_.items[order[i]].size);
    }
    return result;
  }

  // Places the items without holes, in order of their begins. Returns the end of the highest, or
  // the largest number of std::size_t if the lives leave too many gaps.
  std::size_t allocate(std::span<const std::uint32_t> order,
                       std::vector<std::size_t>& offsets) const {
    Order ends(order.begin(), order.end());
    std::ranges::stable_sort(ends, {},
                             [this](std::uint32_t i) { return problem_.items[i].hull.end; });
    auto ended = ends.begin();
    Gaps gaps;
    for (const std::uint32_t i : order) {
      const Item& item = problem_.items[i];
      for (; problem_.items[*ended].hull.end <= item.hull.begin; ++ended) {
        gaps.give_back(offsets[*ended], problem_.items[*ended].size);
      }
      offsets[i] = gaps.take(item.size);
      if (gaps.looks() > kLooksMax / 4) return std::numeric_limits<std::size_t>::max();
    }
    return gaps.top();
  }

  // Returns the lowest gap between those items of `placed` that live at the same time.
  std::size_t lowest_gap(std::uint32_t index, std::span<const std::uint32_t> placed,
                         const std::vector<std::size_t>& offsets) const {
    const Item& item = problem_.items[index];
    Order meeting;
    std::ranges::copy_if(placed, std::back_inserter(meeting), [&](std::uint32_t other) {
      return problem_.meet(item, problem_.items[other]);
    });
    std::ranges::sort(meeting, {}, [&](std::uint32_t other) { return offsets[other]; });
    std::size_t top = 0;
    for (const std::uint32_t other : meeting) {
      if (offsets[other] >= top + item.size) break;
      top = std::max(top, offsets[other] + problem_.items[other].size);
    }
    return top;
  }

  // Returns, by item, its fixed offset, even if it has no life; 0 where it has none.
  std::vector<std::size_t> fixed_offsets() const {
    std::vector<std::size_t> offsets;
    offsets.reserve(items_.size());
    for (const PackItem& item : items_) offsets.push_back(item.fixed_offset.value_or(0));
    return offsets;
  }

  // Makes an attempt and returns its packed bytes. With `gives_up` it ends once it is no better
  // than the best so far, and returns the best.
  std::size_t attempt(const Order& order, Fit fit, bool gives_up) {
    place_fixed(false);
    std::vector<std::size_t> offsets = fixed_offsets();
    for (const std::uint32_t i : order) {
      offsets[i] = placer_.place(i, fit);
      if (gives_up && placer_.packed_bytes() >= result_.packed_bytes) return result_.packed_bytes;
    }
    const std::size_t packed = std::max(placer_.packed_bytes(), fixed_end_);
    latest_ = offsets;
    if (packed < result_.packed_bytes) {
      result_.packed_bytes = packed;
      result_.offsets = std::move(offsets);
      best_order_ = order;
      best_fit_ = fit;
    }
    return packed;
  }

  // Repeats the best attempt a few times. Items that stick out above the lower bound came too late,
  // so they go first in the next attempt.
  void repair() {
    Order order = best_order_;
    latest_ = result_.offsets;
    const std::size_t bound = std::max(problem_.live_bytes, fixed_end_);
    int in_vain = 0;
    for (int round = 0; round < kRepairRoundsMax && in_vain < kRepairRoundsInVain && !is_done();
         ++round) {
      std::ranges::stable_partition(
          order, [&](std::uint32_t i) { return latest_[i] + problem_.items[i].size > bound; });
      const std::size_t lowest_before = result_.packed_bytes;
      in_vain = attempt(order, best_fit_, false) < lowest_before ? 0 : in_vain + 1;
    }
  }

  const Problem& problem_;
  Placer placer_;
  std::span<const PackItem> items_;
  const std::size_t enough_bytes_;
  std::vector<std::uint32_t> fixed_;
  std::vector<std::uint32_t> free_;
  std::size_t fixed_end_ = 0;
  PackResult result_;
  Order best_order_;
  Fit best_fit_ = Fit::kLowest;
  std::vector<std::size_t> latest_;
};

}  // namespace

PackResult pack_intervals(std::span<const PackItem> items, std::size_t alignment,
                          std::size_t enough_bytes) {
  TERRACE_CHECK_LT(0U, alignment);
  if (items.empty()) return {};
  const Problem problem = read_problem(items, alignment);
  return Search(problem, items, alignment, enough_bytes).run();
}

bool can_pack(std::span<const PackItem> items, std::size_t alignment, std::size_t bytes) {
  TERRACE_CHECK_LT(0U, alignment);
  if (items.empty()) return true;
  const Problem problem = read_problem(items, alignment);
  return problem.live_bytes <= bytes && Search(problem, items, alignment, bytes).fits();
}

}  // namespace terrace
