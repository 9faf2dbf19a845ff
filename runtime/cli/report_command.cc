#include <fmt/format.h>

#include <array>
#include <string_view>

#include "base/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/standard_output.h"
#include "runtime/config/flag_reader.h"
#include "runtime/report/prometheus_text.h"
#include "runtime/report/report_file.h"
#include "runtime/report/report_page.h"
#include "runtime/report/report_run.h"

namespace terrace {
namespace {

constexpr auto kReportOperands = std::to_array<std::string_view>({"RUN"});
constexpr CommandSpec kReportCommand = {
    .name = "terrace report",
    .summary =
        "Shows training runs on one HTML page: curves, where the time went, memory, the reasons of "
        "the plan and the configuration; with several runs also a comparison. Each RUN is a run "
        "directory, of a run that has ended or is still going on. The page is one file and needs "
        "no network.",
    .operands = kReportOperands,
    .repeats_last_operand = true};

enum : std::size_t { kReportOutput, kReportFormat };
constexpr auto kReportFlags = std::to_array<FlagSpec>({
    {"output", "Result", "FILE",
     "The file to write; a file that is there is replaced only if it is a report. Needed for html; "
     "prometheus goes to standard output without it"},
    {"format", "Result", "html|prometheus",
     "html: the page. prometheus: the last row of metrics.jsonl in the text format that "
     "Prometheus reads (html)"},
});

constexpr auto kReportFormats = std::to_array<std::string_view>({"html", "prometheus"});

}  // namespace

int run_report(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kReportCommand, kReportFlags));
    return 0;
  }
  const auto [values, directories] = read_command_line(kReportCommand, kReportFlags, arguments);
  const bool is_page = !values[kReportFormat] || values[kReportFormat]->choice(kReportFormats) == 0;
  const std::string output = values[kReportOutput] ? values[kReportOutput]->name() : "";
  if (output.empty() && is_page) {
    throw ConfigError("--output is missing", "name the page to write: --output report.html");
  }
  if (!output.empty()) report::check_report_file(output);
  const std::vector<report::ReportRun> runs = report::read_runs(directories);
  const std::string text = is_page ? report::report_page(runs) : report::prometheus_text(runs);
  if (output.empty()) {
    print_now(text);
    return 0;
  }
  report::write_report_file(output, text);
  for (const report::ReportRun& run : runs) {
    for (const std::string& remark : run.remarks) fmt::print("{}: {}\n", run.name, remark);
  }
  fmt::print("wrote {}\n", output);
  return 0;
}

}  // namespace terrace
