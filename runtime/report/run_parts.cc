#include <fmt/format.h>

#include <array>
#include <string_view>

#include "runtime/report/run_sections.h"

namespace terrace::report {
namespace {

struct PartName {
  std::string_view title;
  std::string_view key;
};

constexpr std::array<PartName, kRunParts> kPartNames = {{{"Curves", "curves"},
                                                         {"Where the time went", "time"},
                                                         {"Memory", "memory"},
                                                         {"Prediction and links", "prediction"},
                                                         {"Reasons of the plan", "plan"},
                                                         {"Configuration and machine", "setup"}}};

}  // namespace

std::string section_heading(const std::string& id, RunPart part) {
  const PartName& name = kPartNames.at(static_cast<std::size_t>(part));
  return fmt::format("<h3 id=\"{}-{}\">{}</h3>\n", id, name.key, name.title);
}

std::string links_to_parts(const std::string& id) {
  std::string html = "<nav class=\"parts\" aria-label=\"Parts of the run\"><ul>\n";
  for (const PartName& name : kPartNames) {
    html += fmt::format("<li><a href=\"#{}-{}\">{}</a></li>\n", id, name.key, name.title);
  }
  return html + "</ul></nav>\n";
}

}  // namespace terrace::report
