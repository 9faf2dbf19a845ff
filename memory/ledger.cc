#include "memory/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"

namespace terrace {
namespace {

constexpr std::array<Account, kAccountCount> kAccounts = [] {
  std::array<Account, kAccountCount> accounts{};
  for (std::size_t i = 0; i < kAccountCount; ++i) accounts.at(i) = static_cast<Account>(i);
  return accounts;
}();

constexpr std::size_t kLargestAccountsNamed = 3;

// Returns the tiers that have bytes or a budget.
std::vector<Tier> tiers_in_use(const Ledger& ledger) {
  std::vector<Tier> tiers;
  for (const Tier tier : kTiers) {
    if (ledger[tier].peak_bytes > 0 || ledger[tier].budget_bytes) tiers.push_back(tier);
  }
  return tiers;
}

// Returns a line of a table: a title, and a cell for each tier.
template <typename Cell>
std::string line_of(std::string_view title, const std::vector<Tier>& tiers, Cell cell) {
  constexpr std::size_t kTitleWidth = 17;
  constexpr std::size_t kCellWidth = 10;
  std::string line = fmt::format("{:<{}}", title, kTitleWidth);
  for (const Tier tier : tiers) line += fmt::format("{:>{}}", std::string(cell(tier)), kCellWidth);
  return line + '\n';
}

std::string largest_accounts(const TierLedger& of) {
  std::array<Account, kAccountCount> order = kAccounts;
  std::ranges::stable_sort(order, [&of](Account a, Account b) { return of[a] > of[b]; });
  std::string text;
  for (std::size_t i = 0; i < kLargestAccountsNamed && of[order.at(i)] != 0; ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", name_of(order.at(i)),
                        format_size(of[order.at(i)]));
  }
  return text.empty() ? text : fmt::format(" (largest: {})", text);
}

}  // namespace

std::size_t TierLedger::over_bytes() const {
  return budget_bytes && peak_bytes > *budget_bytes ? peak_bytes - *budget_bytes : 0;
}

bool fits(const Ledger& ledger) {
  return std::ranges::all_of(ledger.tiers,
                             [](const TierLedger& of) { return of.over_bytes() == 0; });
}

std::string to_text(const Ledger& ledger) {
  const std::vector<Tier> tiers = tiers_in_use(ledger);
  std::string text = line_of("", tiers, [](Tier tier) { return name_of(tier); });
  text += line_of("budget", tiers, [&](Tier tier) {
    const auto& budget = ledger[tier].budget_bytes;
    return budget ? format_size(*budget) : std::string("none");
  });
  text += line_of("peak", tiers, [&](Tier tier) { return format_size(ledger[tier].peak_bytes); });
  for (const Account account : kAccounts) {
    const bool is_used =
        std::ranges::any_of(tiers, [&](Tier tier) { return ledger[tier][account] > 0; });
    if (!is_used) continue;
    text += line_of(fmt::format("  {}", name_of(account)), tiers, [&](Tier tier) {
      const std::size_t charged = ledger[tier][account];
      return charged == 0 ? std::string("-") : format_size(charged);
    });
  }
  return text;
}

std::string describe_shortfall(const Ledger& ledger) {
  std::string text;
  for (const Tier tier : kTiers) {
    const TierLedger& of = ledger[tier];
    if (of.over_bytes() == 0) continue;
    text +=
        fmt::format("{}{} needs {} but its budget is {}, {} too little{}", text.empty() ? "" : "; ",
                    name_of(tier), format_size(of.peak_bytes), format_size(*of.budget_bytes),
                    format_size(of.over_bytes()), largest_accounts(of));
  }
  return text;
}

}  // namespace terrace
