#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/run_sections.h"
#include "runtime/report/run_summary.h"
#include "runtime/report/share_bars.h"

namespace terrace::report {
namespace {

std::string name_of_account(std::string account) {
  std::ranges::replace(account, '_', ' ');
  return account;
}

// Returns the accounts that have bytes in any tier, in the order of the file.
std::vector<std::string> accounts_in(const std::vector<TierMemory>& memory) {
  std::vector<std::string> accounts;
  for (const TierMemory& tier : memory) {
    for (const auto& [account, bytes] : tier.accounts) {
      const bool is_new = std::ranges::find(accounts, account) == accounts.end();
      if (bytes > 0 && is_new) accounts.push_back(account);
    }
  }
  return accounts;
}

double bytes_of(const TierMemory& tier, const std::string& account) {
  for (const auto& [name, bytes] : tier.accounts) {
    if (name == account) return bytes;
  }
  return 0;
}

// Returns the class of an account's colour: the place among those that are shown.
std::string class_of_account(std::size_t index) { return fmt::format("a{}", index % 10); }

// Returns the bytes between the accounts and the peak, which packing takes.
double packing_bytes(const TierMemory& tier) {
  double sum = 0;
  for (const auto& [account, bytes] : tier.accounts) sum += bytes;
  return std::max(tier.peak_bytes - sum, 0.0);
}

std::string tier_bar(const TierMemory& tier, const std::vector<std::string>& accounts,
                     const std::string& id) {
  // A budget far beyond the peak would leave nothing to see of the accounts.
  constexpr double kMostTimesThePeak = 4;
  const bool has_line =
      tier.budget_bytes && *tier.budget_bytes <= kMostTimesThePeak * tier.peak_bytes;
  ShareBar bar = {.id = id,
                  .title = fmt::format("Memory of the {} tier by account", tier.name),
                  .parts = {},
                  .whole = tier.peak_bytes,
                  .marker = has_line ? tier.budget_bytes : std::nullopt};
  for (std::size_t i = 0; i < accounts.size(); ++i) {
    bar.parts.push_back(
        {name_of_account(accounts[i]), bytes_of(tier, accounts[i]), class_of_account(i)});
  }
  bar.parts.push_back({"lost to packing", packing_bytes(tier), "packing"});
  std::string text = fmt::format("{}: peak {}", tier.name, bytes_text(tier.peak_bytes));
  if (tier.budget_bytes) {
    text += fmt::format(", budget {} ({}), {} used", bytes_text(*tier.budget_bytes),
                        has_line ? "the line" : "beyond the bar",
                        percent_text(tier.peak_bytes / std::max(*tier.budget_bytes, 1.0)));
  } else {
    text += ", no budget";
  }
  return fmt::format("<figure class=\"tier\"><figcaption>{}</figcaption>\n{}</figure>\n",
                     escaped(text), share_bar(bar, bytes_text));
}

std::string bytes_cell(double bytes) {
  return bytes > 0 ? number_element(bytes, bytes_text(bytes)) : std::string("-");
}

std::string accounts_table(const std::vector<TierMemory>& memory,
                           const std::vector<std::string>& accounts) {
  std::vector<HtmlTable::Column> columns = {{"Account"}};
  for (const TierMemory& tier : memory) columns.push_back({tier.name, true});
  HtmlTable table("Planned memory by account, when the most bytes are live", std::move(columns));
  for (std::size_t i = 0; i < accounts.size(); ++i) {
    std::vector<std::string> cells = {area_key(class_of_account(i)) +
                                      escaped(name_of_account(accounts[i]))};
    for (const TierMemory& tier : memory) cells.push_back(bytes_cell(bytes_of(tier, accounts[i])));
    table.add(std::move(cells));
  }
  std::vector<std::string> packing = {area_key("packing") + "lost to packing"};
  std::vector<std::string> peak = {"peak"};
  std::vector<std::string> budget = {"budget"};
  for (const TierMemory& tier : memory) {
    packing.push_back(bytes_cell(packing_bytes(tier)));
    peak.push_back(bytes_cell(tier.peak_bytes));
    budget.push_back(tier.budget_bytes ? bytes_cell(*tier.budget_bytes) : "none");
  }
  table.add(std::move(packing));
  table.add(std::move(peak), "sum");
  table.add(std::move(budget), "sum");
  return table.text();
}

std::string process_sentence(const ReportRun& run) {
  const double peak = summary_of(run).process_peak_bytes;
  if (!(peak > 0)) return "";
  std::string text =
      fmt::format("The process had at most {} resident", number_element(peak, bytes_text(peak)));
  if (run.facts.measured && run.facts.measured->planned_process_bytes > 0) {
    text += fmt::format("; {} were planned",
                        escaped(bytes_text(run.facts.measured->planned_process_bytes)));
  }
  return paragraph(text + ".");
}

}  // namespace

std::string memory_section(const ReportRun& run, const std::string& id) {
  std::string html = section_heading(id, RunPart::kMemory);
  std::vector<TierMemory> memory = run.facts.memory;
  std::erase_if(memory, [](const TierMemory& tier) { return !(tier.peak_bytes > 0); });
  if (memory.empty()) {
    html += run.facts.program.empty()
                ? paragraph("run.json does not say which account holds how much memory.")
                : paragraph("run.json of this version has the memory only as text:") +
                      fmt::format("<pre>{}</pre>\n", escaped(run.facts.program));
    return html + process_sentence(run);
  }
  const std::vector<std::string> accounts = accounts_in(memory);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    html += tier_bar(memory[i], accounts, fmt::format("{}m{}", id, i));
  }
  return html + accounts_table(memory, accounts) + process_sentence(run);
}

}  // namespace terrace::report
