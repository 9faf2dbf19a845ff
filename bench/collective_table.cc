#include "bench/collective_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/collective_case.h"
#include "bench/figure_text.h"

namespace terrace {
namespace {

double detail_of(const BenchResult& result, std::string_view name) {
  const auto found = std::ranges::find(result.details, name, &BenchResult::Detail::name);
  return found == result.details.end() ? 0 : found->values.median();
}

std::string note_of(const BenchResult& result, std::string_view name) {
  const auto found = std::ranges::find(result.notes, name, &BenchResult::Note::name);
  return found == result.notes.end() ? "" : found->text;
}

// Returns the collective of a result by its name, "thread_all_reduce_fp32_1mib". Null: another
// result.
const CollectiveCase* case_of(const BenchResult& result) {
  const auto found = std::ranges::find_if(collective_cases(), [&](const CollectiveCase& one) {
    return result.name.find(fmt::format("_{}_", one.name)) != std::string::npos;
  });
  return found == collective_cases().end() ? nullptr : &*found;
}

// Returns the name of a result without its size.
std::string_view name_without_size(const BenchResult& result) {
  return std::string_view(result.name).substr(0, result.name.rfind('_'));
}

std::string line(const BenchResult& result) {
  constexpr double kMicroseconds = 1e6;
  return fmt::format("{:>12.0f} {:>12.0f} {:>6} {:>6} {:>12} {:>9} {:>9} {:>9} {:>7}{}\n",
                     detail_of(result, "size"), detail_of(result, "count"), note_of(result, "type"),
                     note_of(result, "redop"),
                     short_number(detail_of(result, "time") * kMicroseconds),
                     short_number(detail_of(result, "algbw")), short_number(result.value.median()),
                     short_number(result.limit.median()), short_number(result.ratio()),
                     result.is_unsteady() ? "*" : "");
}

std::string table_of(const CollectiveCase& what, const std::vector<const BenchResult*>& results) {
  const BenchResult& first = *results.front();
  std::string text = fmt::format(
      "\n{}, n = {:.0f} ranks: busbw = algbw x {} = algbw x {}\n"
      "{:>12} {:>12} {:>6} {:>6} {:>12} {:>9} {:>9} {:>9} {:>7}\n"
      "{:>12} {:>12} {:>6} {:>6} {:>12} {:>9} {:>9} {:>9}\n",
      name_without_size(first), detail_of(first, "ranks"), what.bus_factor_is,
      short_number(detail_of(first, "bus_factor")), "size", "count", "type", "redop", "time",
      "algbw", "busbw", "limit", "ratio", "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)",
      "(GB/s)");
  double sum = 0;
  for (const BenchResult* result : results) {
    text += line(*result);
    sum += result->value.median();
  }
  return text + fmt::format("mean busbw: {} GB/s\n",
                            short_number(sum / static_cast<double>(results.size())));
}

}  // namespace

bool is_in_rate_table(const BenchResult& result) { return case_of(result) != nullptr; }

std::string rate_tables(std::span<const BenchResult> results) {
  std::vector<std::vector<const BenchResult*>> tables;  // in the order of their first results
  for (const BenchResult& result : results) {
    if (!is_in_rate_table(result)) continue;
    const auto same = std::ranges::find_if(tables, [&](const auto& table) {
      return name_without_size(*table.front()) == name_without_size(result);
    });
    if (same != tables.end()) {
      same->push_back(&result);
    } else {
      tables.push_back({&result});
    }
  }
  std::string text;
  for (std::vector<const BenchResult*>& table : tables) {
    std::ranges::stable_sort(table, {},
                             [](const BenchResult* result) { return detail_of(*result, "size"); });
    text += table_of(*case_of(*table.front()), table);
  }
  return text;
}

}  // namespace terrace
