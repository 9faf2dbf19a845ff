#include <fmt/format.h>

#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/plan_words.h"
#include "runtime/report/run_sections.h"

namespace terrace::report {
namespace {

std::string states_table(const PlanWords& words) {
  HtmlTable table("Where each state lives between uses, and why",
                  {{"State"}, {"Units"}, {"Home"}, {"Bytes of each", true}, {"Why"}});
  for (const StateWords& state : words.states) {
    table.add({escaped(state.state), escaped(state.units), escaped(state.home),
               state.bytes > 0 ? number_element(state.bytes, bytes_text(state.bytes)) : "-",
               escaped(state.reason)});
  }
  return table.text();
}

std::string updates_table(const PlanWords& words) {
  HtmlTable table("Where and when updates run", {{"Units"}, {"Where"}, {"When"}});
  for (const UpdateWords& update : words.updates) {
    table.add({escaped(update.units), escaped(update.where), escaped(update.when)});
  }
  return table.text();
}

std::string loads_table(const PlanWords& words) {
  HtmlTable table("Loads of a step, and why none is issued earlier",
                  {{"Units"}, {"Loads of each"}, {"Issued"}, {"Why not earlier"}});
  for (const LoadWords& load : words.loads) {
    table.add({escaped(load.units), escaped(load.what), escaped(load.issued), escaped(load.limit)});
  }
  return table.text();
}

// Returns the words in the form in which a shell reads them.
std::string shell_line(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

// Returns the lines that set an option, without comments.
std::string set_options(const std::string& config) {
  std::string lines;
  std::size_t at = 0;
  while (at < config.size()) {
    const std::size_t end = std::min(config.find('\n', at), config.size());
    const std::string line = config.substr(at, end - at);
    if (!line.empty() && line.front() != '#') lines += line + '\n';
    at = end + 1;
  }
  return lines;
}

std::string words_of_fact(const std::string& key, const std::string& value) {
  if (key.ends_with("_bytes") && value.find_first_not_of("0123456789") == std::string::npos &&
      value.size() < 18 && !value.empty()) {
    return bytes_text(std::stod(value));
  }
  return value;
}

std::string name_of_fact(std::string key) {
  if (key == "cpu") return "CPU";
  if (key.ends_with("_bytes")) key.resize(key.size() - std::string_view("_bytes").size());
  for (char& c : key) c = c == '_' ? ' ' : c;
  return key;
}

}  // namespace

std::string plan_section(const ReportRun& run, const std::string& id) {
  std::string html = section_heading(id, RunPart::kPlan);
  const PlanWords words = run.facts.reasons.empty() ? PlanWords() : plan_words(run.facts.reasons);
  if (words.is_empty()) {
    return html + paragraph("run.json has no reasons for this plan.");
  }
  std::vector<std::string> tiers = words.tiers;
  for (std::string& sentence : tiers) sentence = escaped(sentence);
  return html + bullet_list(tiers) + states_table(words) + updates_table(words) +
         loads_table(words);
}

std::string setup_section(const ReportRun& run, const std::string& id) {
  HtmlTable table("Version and machine", {{"Fact"}, {"Value"}});
  if (!run.facts.version.empty()) table.add({"terrace", escaped(run.facts.version)});
  if (!run.facts.started.empty()) table.add({"started", escaped(run.facts.started)});
  table.add({"run directory", fmt::format("<code>{}</code>", escaped(run.directory))});
  for (const auto& [key, value] : run.facts.host) {
    table.add({escaped(name_of_fact(key)), escaped(words_of_fact(key, value))});
  }
  std::string html = section_heading(id, RunPart::kSetup) + table.text();
  if (!run.facts.command_line.empty()) {
    html += "<h4>Command line</h4>\n" +
            fmt::format("<pre>{}</pre>\n", escaped(shell_line(run.facts.command_line)));
  }
  const std::string options = set_options(run.config_text);
  if (!options.empty()) {
    html += "<h4>Options that are set (config.toml)</h4>\n" +
            fmt::format("<pre class=\"options\">{}</pre>\n", escaped(options));
  }
  if (!run.facts.program.empty()) {
    html += "<h4>The compiled step, as the console described it</h4>\n" +
            fmt::format("<pre>{}</pre>\n", escaped(run.facts.program));
  }
  return html;
}

}  // namespace terrace::report
