#include "runtime/step/place.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "memory/arena_plan.h"
#include "offload/raw_file.h"

namespace terrace {
namespace {

constexpr std::size_t kOffsetAlignment = 4096;
static_assert(kOffsetAlignment % kTransferAlignment == 0, "drives read and write buffers");

// The offsets of the persistent buffers of the base program.
using FixedOffsets = std::map<BufferKey, std::size_t>;

// Returns the tier's buffers in the order of first use, then size, last use, and the access by
// which the first op uses them. No two buffers have the same first access, so the order does not
// depend on the order in which the buffers were made. Buffers that no op uses come last, by size
// and key.
std::vector<BufferId> in_order_of_use(const Draft& draft, const LinearDraft& linear, Tier tier) {
  struct Entry {
    std::tuple<bool, std::int64_t, std::size_t, std::int64_t, std::int32_t> use;
    const BufferKey* key;
    BufferId id;
  };
  std::vector<Entry> entries;
  for (BufferId b = 0; b < static_cast<BufferId>(draft.buffers.size()); ++b) {
    const Buffer& buffer = draft.buffers[b];
    if (buffer.tier != tier || linear.stands_for[b] != b) continue;
    const BufferUse& use = linear.uses[b];
    entries.push_back({{use.first < 0, use.first, buffer.size_bytes, use.last, use.first_access},
                       &buffer.key,
                       b});
  }
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return a.use != b.use ? a.use < b.use : *a.key < *b.key;
  });
  std::vector<BufferId> ids;
  ids.reserve(entries.size());
  for (const Entry& entry : entries) ids.push_back(entry.id);
  return ids;
}

std::vector<PackItem> items_of_tier(const Draft& draft, const LinearDraft& linear, Tier tier,
                                    const FixedOffsets& fixed, std::vector<BufferId>& ids) {
  std::vector<PackItem> items;
  for (const BufferId b : in_order_of_use(draft, linear, tier)) {
    const Buffer& buffer = draft.buffers[b];
    PackItem item;
    item.size_bytes = buffer.size_bytes;
    visit_life_at_place(linear, b, [&](std::int64_t begin, std::int64_t end) {
      item.live.push_back({begin, end});
    });
    if (item.live.empty()) continue;
    const auto at = fixed.find(buffer.key);
    if (linear.lives[b] == Life::kPersistent && at != fixed.end()) item.fixed_offset = at->second;
    items.push_back(std::move(item));
    ids.push_back(b);
  }
  return items;
}

// Reserves the places of the base program's persistent buffers that this program does not use.
void reserve_base(const Program& base, const Draft& draft, Tier tier, std::int64_t end,
                  std::vector<PackItem>& items) {
  std::vector<BufferKey> own_keys;
  for (const Buffer& own : draft.buffers) {
    if (own.key.kind != BufferKind::kOther) own_keys.push_back(own.key);
  }
  std::ranges::sort(own_keys);
  for (const Buffer& buffer : base.buffers) {
    if (buffer.tier != tier || buffer.life != Life::kPersistent) continue;
    if (!std::ranges::binary_search(own_keys, buffer.key))
      items.push_back({buffer.size_bytes, {{0, end}}, buffer.offset});
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
    visit_life_at_place(linear, static_cast<BufferId>(b),
                        [&](std::int64_t begin, std::int64_t end) {
                          if (begin > at || at >= end) return;
                          use.accounts.at(static_cast<std::size_t>(draft.buffers[b].account)) +=
                              draft.buffers[b].size_bytes;
                        });
  }
  return use;
}

// Adds the buffers that are left, numbered anew. Returns the new number of each buffer of the
// draft.
std::vector<BufferId> add_buffers(const Draft& draft, const LinearDraft& linear, Program& program) {
  std::vector<BufferId> numbers(draft.buffers.size(), kNoBuffer);
  program.buffers.reserve(draft.buffers.size());
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    const BufferId stands_for = linear.stands_for[b];
    if (stands_for == static_cast<BufferId>(b)) {
      numbers[b] = static_cast<BufferId>(program.buffers.size());
      program.buffers.push_back(draft.buffers[b]);
      program.buffers.back().life = linear.lives[b];
    } else if (stands_for != kNoBuffer) {  // a buffer that was added before
      numbers[b] = numbers.at(stands_for);
    }
  }
  return numbers;
}

void add_ops(const Draft& draft, const LinearDraft& linear, const std::vector<BufferId>& numbers,
             Program& program) {
  program.ops.reserve(linear.ops.size());
  for (std::size_t i = 0; i < linear.ops.size(); ++i) {
    const DraftOp& from = *linear.ops[i];
    Op& op = program.ops.emplace_back(from.op);
    op.parts = linear.parts[i];
    const auto renumbered = [&](std::span<const Access> accesses) {
      std::vector<Access> own(accesses.begin(), accesses.end());
      for (Access& access : own) access.buffer = numbers.at(access.buffer);
      return own;
    };
    op.reads = renumbered(draft.reads(from));
    op.writes = renumbered(draft.writes(from));
  }
}

void number_extents(const std::vector<BufferId>& ids, const std::vector<BufferId>& numbers,
                    Program& program, const FixedOffsets& fixed) {
  std::size_t next = 0;
  TierUse& use = program.use.at(static_cast<std::size_t>(Tier::kNvme));
  for (const BufferId b : ids) {
    Buffer& buffer = program.buffers.at(numbers[b]);
    const auto at = fixed.find(buffer.key);
    TERRACE_CHECK(fixed.empty() || at != fixed.end());
    buffer.offset = fixed.empty() ? next++ : at->second;
    use.packed_bytes += buffer.size_bytes;
    use.live_bytes += buffer.size_bytes;
    use.accounts.at(static_cast<std::size_t>(buffer.account)) += buffer.size_bytes;
  }
}

}  // namespace

bool live_over_budget(const Draft& draft, const LinearDraft& linear, Tier tier,
                      const TierBudgets& budgets) {
  const auto& budget = budgets.at(static_cast<std::size_t>(tier));
  return budget.has_value() && live_peak(draft, linear, tier) > *budget;
}

bool live_over_budget(const Draft& draft, const LinearDraft& linear, const TierBudgets& budgets) {
  return std::ranges::any_of(
      kTiers, [&](Tier tier) { return live_over_budget(draft, linear, tier, budgets); });
}

std::size_t packed_bytes(const Draft& draft, const LinearDraft& linear, Tier tier,
                         std::size_t enough_bytes) {
  std::vector<BufferId> ids;
  const std::vector<PackItem> items = items_of_tier(draft, linear, tier, {}, ids);
  return pack_intervals(items, kOffsetAlignment, enough_bytes).packed_bytes;
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

ArenaPacking::ArenaPacking(const Draft& draft, const LinearDraft& linear, const Program* base)
    : draft_(draft), linear_(linear), base_(base) {
  if (base == nullptr) return;
  for (const Buffer& buffer : base->buffers) {
    if (buffer.life == Life::kPersistent) fixed_.emplace(buffer.key, buffer.offset);
  }
}

ArenaPacking::Arena ArenaPacking::packed(Tier tier, std::size_t enough_bytes) const {
  Arena arena;
  std::vector<PackItem> items = items_of_tier(draft_, linear_, tier, fixed_, arena.ids);
  const auto end = static_cast<std::int64_t>(linear_.ops.size());
  if (base_ != nullptr) reserve_base(*base_, draft_, tier, end, items);
  PackResult result = pack_intervals(items, kOffsetAlignment, enough_bytes);
  arena.offsets = std::move(result.offsets);
  arena.use.packed_bytes = result.packed_bytes;
  return arena;
}

void ArenaPacking::pack(Tier tier, std::optional<std::size_t> enough_bytes) {
  arena(tier) = packed(tier, enough_bytes.value_or(0));
  use(tier) = use_of(draft_, linear_, tier, use(tier).packed_bytes);
}

bool ArenaPacking::pack_within(Tier tier, std::optional<std::size_t> budget_bytes) {
  Arena found = packed(tier, budget_bytes.value_or(0));
  const std::size_t packed_bytes = found.use.packed_bytes;
  if (packed_bytes > budget_bytes.value_or(packed_bytes)) return false;
  found.use = use_of(draft_, linear_, tier, packed_bytes);
  arena(tier) = std::move(found);
  return true;
}

Program ArenaPacking::program() const {
  check_keys(draft_);
  Program program;
  program.compute_tier = draft_.compute_tier;
  const std::vector<BufferId> numbers = add_buffers(draft_, linear_, program);
  add_ops(draft_, linear_, numbers, program);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const auto t = static_cast<std::size_t>(tier);
    const Arena& arena = arenas_.at(t);
    for (std::size_t i = 0; i < arena.ids.size(); ++i) {
      program.buffers.at(numbers[arena.ids[i]]).offset = arena.offsets[i];
    }
    program.use.at(t) = arena.use;
  }
  if (linear_.repeated.has_value()) {
    for (const BufferId b : linear_.repeated->filled) {
      program.buffers.at(numbers[linear_.repeated->next[b]]).offset =
          program.buffers.at(numbers[b]).offset;
    }
    program.repetition = repetition_of(draft_, linear_, numbers);
  }
  number_extents(in_order_of_use(draft_, linear_, Tier::kNvme), numbers, program, fixed_);
  return program;
}

}  // namespace terrace
