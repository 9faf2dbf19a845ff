#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/bytes.h"
#include "bench/bench_report.h"
#include "bench/collective_table.h"
#include "bench/figure_text.h"

namespace terrace {
namespace {

constexpr std::size_t kNameColumns = 34;
constexpr std::size_t kIndent = 4;

std::string row(std::string_view name, std::span<const std::string> cells) {
  std::string text;
  std::string_view shown = name;
  if (name.size() > kNameColumns) {
    text = std::string(name) + "\n";
    shown = "";
  }
  return text + fmt::format("{:<{}}  {:>9} {:>9} {:>9} {:>9}  {:>7}  {}\n", shown, kNameColumns,
                            cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]);
}

std::string result_row(const BenchResult& result) {
  const ShownUnit unit = shown_unit(result.value.median(), name_of(result.unit));
  const auto number = [&](double value) { return short_number(value * unit.factor); };
  const std::string cells[] = {number(result.value.median()),
                               number(result.value.low()),
                               number(result.value.high()),
                               number(result.limit.median()),
                               short_number(result.ratio()) + (result.is_unsteady() ? "*" : " "),
                               unit.name};
  return row(result.name, cells);
}

std::string spread_text(const BenchResult& result) {
  if (result.value.count() < 2) {
    return "* one round does not show whether the result is steady: give it more time";
  }
  return fmt::format("* samples differ by a factor of {}: measure again when nothing else runs",
                     short_number(result.spread()));
}

using ShapeRates = std::vector<BenchResult::ShapeRate>;

// The rates of one tool: a line for each block size, a column for each queue depth.
std::string matrix_of_tool(const std::string& tool, const ShapeRates& rates) {
  std::set<std::size_t> blocks;
  std::set<int> depths;
  // Rates measured in rounds come after those that were tried once, and replace them.
  std::map<std::pair<std::size_t, int>, const BenchResult::ShapeRate*> cells;
  for (const BenchResult::ShapeRate& rate : rates) {
    if (rate.tool != tool) continue;
    blocks.insert(rate.block_bytes);
    depths.insert(rate.depth);
    cells[{rate.block_bytes, rate.depth}] = &rate;
  }
  const bool has_tries =
      std::ranges::any_of(cells, [](const auto& cell) { return cell.second->rounds == 0; });
  std::string text = fmt::format("    {}, GB/s by block size and queue depth{}\n", tool,
                                 has_tries ? " (': tried once)" : "");
  text += fmt::format("    {:>10}", "depth");
  for (const int depth : depths) text += fmt::format(" {:>8} ", depth);
  text += "\n";
  for (const std::size_t block : blocks) {
    text += fmt::format("    {:>10}", format_size(block));
    for (const int depth : depths) {
      const auto cell = cells.find({block, depth});
      const bool is_there = cell != cells.end();
      text += fmt::format(" {:>8}{}", is_there ? short_number(cell->second->gb_per_s) : "-",
                          is_there && cell->second->rounds == 0 ? "'" : " ");
    }
    text += "\n";
  }
  return text;
}

std::string matrix_lines(const BenchResult& result) {
  std::vector<std::string> tools;
  for (const BenchResult::ShapeRate& rate : result.matrix) {
    if (std::ranges::find(tools, rate.tool) == tools.end()) tools.push_back(rate.tool);
  }
  std::string text;
  for (const std::string& tool : tools) text += matrix_of_tool(tool, result.matrix);
  return text;
}

std::string result_lines(const BenchResult& result) {
  const int rounds = result.value.count();
  std::string text = result_row(result);
  text += wrapped(
      fmt::format("{} round{}; the limit is {}", rounds, rounds == 1 ? "" : "s", result.limit_is),
      kIndent);
  if (result.is_unsteady()) text += wrapped(spread_text(result), kIndent);
  if (result.goal && result.ratio() < *result.goal) {
    text += wrapped(fmt::format("below the goal of {}", *result.goal), kIndent);
  }
  std::string details;
  for (const BenchResult::Detail& detail : result.details) {
    details += fmt::format("{}{} {}", details.empty() ? "" : "; ", detail.name,
                           figure_text(detail.values.median(), detail.unit));
  }
  for (const BenchResult::Note& note : result.notes) {
    details += fmt::format("{}{}: {}", details.empty() ? "" : "; ", note.name, note.text);
  }
  if (!details.empty()) text += wrapped(details, kIndent);
  return text + matrix_lines(result);
}

std::string drive_text(const DrivePlace& place) {
  const std::string device = place.device.empty() ? "no block device" : place.device;
  return fmt::format("drive: {}{}{}, {}, {} free", device, place.model.empty() ? "" : " ",
                     place.model, place.file_system, format_size(place.free_bytes));
}

std::string cut_text(const BenchRun& run) {
  const std::string by = fmt::format("Cut short after {:.1f} s by {}",
                                     static_cast<double>(run.duration_ns) * 1e-9, run.cut->by);
  if (run.cut->missing.empty()) return by + ": some results have fewer rounds.";
  return fmt::format("{}. Not measured: {}.", by, fmt::join(run.cut->missing, ", "));
}

}  // namespace

std::string bench_table(const BenchReport& report) {
  std::string text = "Medians of interleaved rounds.\n";
  for (const DrivePlace& place : report.run.drives) text += wrapped(drive_text(place), 0);
  const std::string titles[] = {"value", "lowest", "highest", "limit", "ratio ", "unit"};
  std::string rows;
  for (const BenchResult& result : report.results) {
    // With many sizes, the tables of rates say enough.
    if (!report.options.sizes || !is_in_rate_table(result)) rows += result_lines(result);
  }
  if (!rows.empty() || report.results.empty()) text += row("result", titles) + rows;
  text += rate_tables(report.results);
  if (report.run.cut) text += wrapped(cut_text(report.run), 0);
  if (report.comparison) text += "\n" + comparison_table(*report.comparison);
  return text;
}

}  // namespace terrace
