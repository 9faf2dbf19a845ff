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

constexpr std::size_t kColumnCount = 3 + kAccountCount;
constexpr std::size_t kLargestAccountsNamed = 3;

using Row = std::array<std::string, kColumnCount>;

Row title_row() {
  Row row = {"tier", "budget", "peak"};
  for (std::size_t i = 0; i < kAccountCount; ++i) row.at(3 + i) = name_of(kAccounts.at(i));
  return row;
}

Row row_of(Tier tier, const TierLedger& of) {
  Row row = {std::string(name_of(tier)), of.budget_bytes ? format_size(*of.budget_bytes) : "none",
             format_size(of.peak_bytes)};
  for (std::size_t i = 0; i < kAccountCount; ++i) {
    const std::size_t charged = of[kAccounts.at(i)];
    row.at(3 + i) = charged == 0 ? "-" : format_size(charged);
  }
  return row;
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
  std::vector<Row> rows = {title_row()};
  for (const Tier tier : kTiers) rows.push_back(row_of(tier, ledger[tier]));
  std::array<std::size_t, kColumnCount> widths = {};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < kColumnCount; ++i) {
      widths.at(i) = std::max(widths.at(i), row.at(i).size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    text += fmt::format("{:<{}}", row.front(), widths.front());
    for (std::size_t i = 1; i < kColumnCount; ++i) {
      text += fmt::format("  {:>{}}", row.at(i), widths.at(i));
    }
    text += '\n';
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
