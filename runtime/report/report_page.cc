#include "runtime/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/config/version.h"
#include "runtime/report/comparison_section.h"
#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/page_style.h"
#include "runtime/report/run_sections.h"

namespace terrace::report {
namespace {

std::string title_of(const std::vector<ReportRun>& runs) {
  if (runs.size() == 1) return runs.front().name + " - training report";
  return fmt::format("{} runs - training report", runs.size());
}

// The browser fetches nothing, whatever a page contains.
constexpr const char* kPolicy =
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\"/>";

std::string head_of(const std::vector<ReportRun>& runs) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n{}\n{}\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n",
      kPageMark, kPolicy, escaped(title_of(runs)), page_style());
}

// Returns links to the runs, where there are several.
std::string links_to_runs(const std::vector<ReportRun>& runs) {
  if (runs.size() == 1) return "";
  std::string html = "<nav aria-label=\"Runs\"><ul>\n";
  html += "<li><a href=\"#comparison\">Comparison</a></li>\n";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<li><a href=\"#r{}\">{}</a></li>\n", i, escaped(runs[i].name));
  }
  return html + "</ul></nav>\n";
}

// Keeps pages of many runs small.
PictureRoom room_for(std::size_t runs) {
  constexpr std::size_t kRunsWithFullRoom = 3;
  if (runs <= kRunsWithFullRoom) return {};
  const PictureRoom full;
  return {.curve_points = std::max<std::size_t>(full.curve_points * kRunsWithFullRoom / runs, 40),
          .timeline_blocks =
              std::max<std::size_t>(full.timeline_blocks * kRunsWithFullRoom / runs, 200)};
}

std::string run_part(const ReportRun& run, std::size_t index, const PictureRoom& room) {
  const std::string id = fmt::format("r{}", index);
  return fmt::format("<section id=\"{}\">\n<h2>Run {}</h2>\n", id, escaped(run.name)) +
         links_to_parts(id) + headline_section(run) + curves_section(run, id, room) +
         time_section(run, id, room) + memory_section(run, id) + prediction_section(run, id) +
         plan_section(run, id) + setup_section(run, id) + "</section>\n";
}

constexpr const char* kHowToRead =
    "Loss is in nats per token. The gradient norm is the one before clipping. A step lasts from "
    "its "
    "first compute op to the first compute op of the next step. With several ranks, bytes are sums "
    "over the ranks, and busy times and peaks are of the rank with the most. The page needs no "
    "network.";

}  // namespace

std::string report_page(const std::vector<ReportRun>& runs) {
  std::string html = head_of(runs);
  html += "<body>\n<a class=\"skip\" href=\"#content\">Skip to the content</a>\n<header>\n";
  html += "<h1>Training report</h1>\n";
  html += paragraph(fmt::format("{}, written by terrace {}",
                                counted(static_cast<std::int64_t>(runs.size()), "run"),
                                escaped(terrace_version())),
                    "note");
  html += links_to_runs(runs) + "</header>\n<main id=\"content\">\n";
  const PictureRoom room = room_for(runs.size());
  if (runs.size() > 1) html += comparison_section(runs, room);
  for (std::size_t i = 0; i < runs.size(); ++i) html += run_part(runs[i], i, room);
  return html + "</main>\n<footer>" + paragraph(kHowToRead) + "</footer>\n" +
         fmt::format("<script>{}</script>\n</body>\n</html>\n", page_script());
}

}  // namespace terrace::report
