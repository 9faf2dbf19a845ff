#include "runtime/step/place.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "memory/arena_plan.h"
#include "offload/raw_file.h"

namespace terrace {
namespace {

constexpr std::size_t kOffsetAlignment = 4096;
static_assert(kOffsetAlignment % kTransferAlignment == 0, "drives read and write buffers");

// Of the persistent buffers of the base program.
using FixedOffsets = std::map<BufferKey, std::size_t>;
using Intervals = std::vector<std::pair<std::int64_t, std::int64_t>>;

struct Touch {
  std::int64_t first = -1;
  std::int32_t first_access = 0;  // of that op, reads first
  std::int64_t last = -1;
  std::int64_t first_write = -1;    // by an op of this step
  std::int64_t last_deferred = -1;  // read by an op of the step before
  bool moved = false;               // between tiers or data-parallel ranks
};

std::vector<Touch> touches(const Draft& draft, const std::vector<const Op*>& ops) {
  std::vector<Touch> touched(draft.buffers.size());
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(ops.size()); ++i) {
    const Op& op = *ops[i];
    std::int32_t number = 0;
    for (const auto* accesses : {&op.reads, &op.writes}) {
      for (const Access& access : *accesses) {
        Touch& touch = touched.at(access.buffer);
        if (touch.first < 0) {
          touch.first = i;
          touch.first_access = number;
        }
        ++number;
        touch.last = i;
        if (op.deferred) touch.last_deferred = i;
        if (op.find(Role::kTarget) != nullptr && op.lane != Lane::kTensor) touch.moved = true;
        if (accesses == &op.writes && !op.deferred && touch.first_write < 0) touch.first_write = i;
      }
    }
  }
  return touched;
}

Intervals life_of(const Buffer& buffer, const Touch& touch, std::int64_t end) {
  if (buffer.life == Life::kPersistent) return {{0, end}};
  if (touch.first < 0) return {};
  if (buffer.life == Life::kTransient) return {{touch.first, touch.last + 1}};
  TERRACE_CHECK_LT(touch.last_deferred, touch.first_write);
  return {{0, touch.last_deferred + 1}, {touch.first_write, end}};
}

// Returns the ops in the order of the list: by stage, and within it by phase, group, step, and then
// as they were made. They come nearly sorted by stage, of which each has a few, so they are dealt
// out to their stages first.
std::vector<std::uint32_t> list_order(const Draft& draft) {
  std::vector<std::uint32_t> begins;
  for (const DraftOp& op : draft.ops) {
    const auto behind = static_cast<std::size_t>(op.stage) + 1;
    if (behind >= begins.size()) begins.resize(behind + 1, 0);
    ++begins[behind];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<std::uint32_t> order(draft.ops.size());
  std::vector<std::uint32_t> next = begins;
  for (std::uint32_t i = 0; i < draft.ops.size(); ++i) order[next[draft.ops[i].stage]++] = i;
  const auto key = [&draft](std::uint32_t i) {
    const DraftOp& op = draft.ops[i];
    return std::tuple(op.phase, op.group, op.step, i);
  };
  for (std::size_t s = 0; s + 1 < begins.size(); ++s) {
    std::sort(order.begin() + begins[s], order.begin() + begins[s + 1],
              [&key](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  }
  return order;
}

// Where each stage begins in the list, and behind them the list's end.
std::vector<std::int64_t> stage_begins(const std::vector<std::int32_t>& stages) {
  const std::int32_t count = stages.empty() ? 0 : stages.back() + 1;
  std::vector<std::int64_t> begins;
  for (std::int32_t s = 0; s <= count; ++s) {
    begins.push_back(std::lower_bound(stages.begin(), stages.end(), s) - stages.begin());
  }
  return begins;
}

// What is carried, with so many stages more behind its last deferred read and before its first
// write.
Intervals widened_carried(const Intervals& life, std::int32_t slack,
                          const std::vector<std::int32_t>& stages,
                          const std::vector<std::int64_t>& begins) {
  const auto count = static_cast<std::int32_t>(begins.size()) - 1;
  const std::int64_t read = life.front().second;
  const std::int32_t behind = read == 0 ? 0 : stages.at(read - 1) + slack + 1;
  const std::int32_t first = stages.at(life.back().first) - slack;
  const std::int64_t end = begins.back();
  if (first <= behind) return {{0, end}};
  return {{0, begins.at(std::min(behind, count))}, {begins.at(first), end}};
}

// `life` with so many stages more before and behind it, in a list that begins again at its end.
Intervals widened(const std::pair<std::int64_t, std::int64_t>& life, std::int32_t slack,
                  const std::vector<std::int32_t>& stages,
                  const std::vector<std::int64_t>& begins) {
  const auto count = static_cast<std::int32_t>(begins.size()) - 1;
  const std::int64_t end = begins.back();
  const std::int32_t first = stages.at(life.first) - slack;
  const std::int32_t behind = stages.at(life.second - 1) + slack + 1;
  if (behind - first >= count) return {{0, end}};
  Intervals intervals = {{begins.at(std::max(first, 0)), begins.at(std::min(behind, count))}};
  if (first < 0) intervals.emplace_back(begins.at(first + count), end);
  if (behind > count) intervals.emplace_back(0, begins.at(behind - count));
  std::sort(intervals.begin(), intervals.end());
  return intervals;
}

// Returns the tier's buffers by first use, size, last use and the access by which the first op uses
// them. No two buffers have the same first access, so the order does not depend on the order in
// which the buffers were made. Buffers that no op uses come last, by size and key.
std::vector<BufferId> in_order_of_use(const Draft& draft, const LinearDraft& linear, Tier tier) {
  std::vector<BufferId> ids;
  for (BufferId b = 0; b < static_cast<BufferId>(draft.buffers.size()); ++b) {
    if (draft.buffers[b].tier == tier) ids.push_back(b);
  }
  const auto key = [&](BufferId b) {
    const Buffer& buffer = draft.buffers[b];
    const BufferUse& use = linear.uses[b];
    return std::tuple(use.first < 0, use.first, buffer.size_bytes, use.last, use.first_access,
                      buffer.key);
  };
  std::ranges::sort(ids, {}, key);
  return ids;
}

std::vector<PackItem> items_of_tier(const Draft& draft, const LinearDraft& linear, Tier tier,
                                    const FixedOffsets& fixed, std::vector<BufferId>& ids) {
  std::vector<PackItem> items;
  for (const BufferId b : in_order_of_use(draft, linear, tier)) {
    const Buffer& buffer = draft.buffers[b];
    if (linear.live[b].empty()) continue;
    PackItem item;
    item.size_bytes = buffer.size_bytes;
    for (const auto& [begin, end] : linear.live[b]) item.live.push_back({begin, end});
    const auto at = fixed.find(buffer.key);
    if (buffer.life == Life::kPersistent && at != fixed.end()) item.fixed_offset = at->second;
    items.push_back(std::move(item));
    ids.push_back(b);
  }
  return items;
}

// Persistent buffers of the base program that this one does not use still hold their place.
void reserve_base(const Program& base, const Draft& draft, Tier tier, std::int64_t end,
                  std::vector<PackItem>& items) {
  for (const Buffer& buffer : base.buffers) {
    if (buffer.tier != tier || buffer.life != Life::kPersistent) continue;
    const bool used = std::any_of(draft.buffers.begin(), draft.buffers.end(),
                                  [&](const Buffer& own) { return own.key == buffer.key; });
    if (!used) items.push_back({buffer.size_bytes, {{0, end}}, buffer.offset});
  }
}

TierUse use_of(const Draft& draft, const LinearDraft& linear, Tier tier, std::size_t packed) {
  TierUse use;
  use.packed_bytes = packed;
  const std::vector<std::size_t> profile = live_profile(draft, linear, tier);
  const auto peak = std::max_element(profile.begin(), profile.end());
  if (peak == profile.end()) return use;
  use.live_bytes = *peak;
  const auto at = static_cast<std::int64_t>(peak - profile.begin());
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    if (draft.buffers[b].tier != tier) continue;
    for (const auto& [begin, end] : linear.live[b]) {
      if (begin <= at && at < end) {
        use.accounts.at(static_cast<std::size_t>(draft.buffers[b].account)) +=
            draft.buffers[b].size_bytes;
      }
    }
  }
  return use;
}

void number_extents(const std::vector<BufferId>& ids, Program& program, const FixedOffsets& fixed) {
  std::size_t next = 0;
  TierUse& use = program.use.at(static_cast<std::size_t>(Tier::kNvme));
  for (const BufferId b : ids) {
    Buffer& buffer = program.buffers[b];
    const auto at = fixed.find(buffer.key);
    TERRACE_CHECK(fixed.empty() || at != fixed.end());
    buffer.offset = fixed.empty() ? next++ : at->second;
    use.packed_bytes += buffer.size_bytes;
    use.live_bytes += buffer.size_bytes;
    use.accounts.at(static_cast<std::size_t>(buffer.account)) += buffer.size_bytes;
  }
}

}  // namespace

LinearDraft linearize(const Draft& draft, const Slack& slack) {
  LinearDraft linear;
  linear.ops.reserve(draft.ops.size());
  linear.stages.reserve(draft.ops.size());
  for (const std::uint32_t i : list_order(draft)) {
    linear.ops.push_back(&draft.ops[i].op);
    linear.stages.push_back(draft.ops[i].stage);
  }
  const std::vector<Touch> touched = touches(draft, linear.ops);
  const auto end = static_cast<std::int64_t>(linear.ops.size());
  const std::vector<std::int64_t> begins = stage_begins(linear.stages);
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    const Buffer& buffer = draft.buffers[b];
    Intervals life = life_of(buffer, touched[b], end);
    const std::int32_t stages = slack.at(static_cast<std::size_t>(buffer.tier));
    if (!life.empty() && touched[b].moved && stages > 0) {
      if (buffer.life == Life::kTransient) {
        life = widened(life.front(), stages, linear.stages, begins);
      } else if (buffer.life == Life::kCarried) {
        life = widened_carried(life, stages, linear.stages, begins);
      }
    }
    linear.live.push_back(std::move(life));
    linear.uses.push_back({touched[b].first, touched[b].last, touched[b].first_access});
  }
  return linear;
}

std::vector<std::size_t> live_profile(const Draft& draft, const LinearDraft& linear, Tier tier) {
  std::vector<std::int64_t> change(linear.ops.size() + 1, 0);
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    if (draft.buffers[b].tier != tier) continue;
    const auto size = static_cast<std::int64_t>(draft.buffers[b].size_bytes);
    for (const auto& [begin, end] : linear.live[b]) {
      change[begin] += size;
      change[end] -= size;
    }
  }
  std::vector<std::size_t> profile;
  std::int64_t live = 0;
  for (std::size_t i = 0; i < linear.ops.size(); ++i) {
    live += change[i];
    profile.push_back(static_cast<std::size_t>(live));
  }
  return profile;
}

std::size_t live_peak(const Draft& draft, const LinearDraft& linear, Tier tier) {
  if (tier == Tier::kNvme) {
    std::size_t bytes = 0;
    for (const Buffer& buffer : draft.buffers) {
      if (buffer.tier == tier) bytes += buffer.size_bytes;
    }
    return bytes;
  }
  const std::vector<std::size_t> profile = live_profile(draft, linear, tier);
  return profile.empty() ? 0 : std::ranges::max(profile);
}

bool live_over_budget(const Draft& draft, const LinearDraft& linear, const TierBudgets& budgets) {
  return std::ranges::any_of(kTiers, [&](Tier tier) {
    const auto& budget = budgets.at(static_cast<std::size_t>(tier));
    return budget.has_value() && live_peak(draft, linear, tier) > *budget;
  });
}

bool fits_tier(const Draft& draft, const LinearDraft& linear, Tier tier,
               const TierBudgets& budgets) {
  const auto& budget = budgets.at(static_cast<std::size_t>(tier));
  if (!budget.has_value()) return true;
  if (live_peak(draft, linear, tier) > *budget) return false;
  if (tier == Tier::kNvme) return true;
  std::vector<BufferId> ids;
  const std::vector<PackItem> items = items_of_tier(draft, linear, tier, {}, ids);
  return can_pack(items, kOffsetAlignment, *budget);
}

Program place(const Draft& draft, const LinearDraft& linear, const Program* base,
              const TierBudgets& enough) {
  FixedOffsets fixed;
  if (base != nullptr) {
    for (const Buffer& buffer : base->buffers) {
      if (buffer.life == Life::kPersistent) fixed.emplace(buffer.key, buffer.offset);
    }
  }
  Program program;
  program.compute_tier = draft.compute_tier;
  program.buffers = draft.buffers;
  program.ops.reserve(linear.ops.size());
  for (const Op* op : linear.ops) program.ops.push_back(*op);
  const auto end = static_cast<std::int64_t>(linear.ops.size());
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const auto t = static_cast<std::size_t>(tier);
    std::vector<BufferId> ids;
    std::vector<PackItem> items = items_of_tier(draft, linear, tier, fixed, ids);
    if (base != nullptr) reserve_base(*base, draft, tier, end, items);
    const PackResult packed = pack_intervals(items, kOffsetAlignment, enough.at(t).value_or(0));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      program.buffers[ids[i]].offset = packed.offsets[i];
    }
    program.use.at(t) = use_of(draft, linear, tier, packed.packed_bytes);
  }
  number_extents(in_order_of_use(draft, linear, Tier::kNvme), program, fixed);
  return program;
}

}  // namespace terrace
