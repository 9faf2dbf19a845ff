#include "runtime/train/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;
using Cells = std::vector<std::string>;

constexpr std::size_t kLineWidth = 80;
constexpr std::size_t kLeastLabelWidth = 6;
constexpr std::string_view kGap = "  ";

std::string clipped(const std::string& text, std::size_t width) {
  if (text.size() <= width) return text;
  return width <= 2 ? text.substr(0, width) : text.substr(0, width - 2) + "..";
}

std::size_t peak_of(const PlanRow& row, Tier tier) {
  return row.outcome.forecast ? row.outcome.forecast->ledger()[tier].peak_bytes : 0;
}

std::string_view bottleneck_of(const RunForecast& forecast) {
  return name_of(forecast.stages.at(forecast.slowest).bottleneck);
}

// Lays out the lines of a table.
class TextTable {
 public:
  explicit TextTable(const PlanTable& table) : table_(table) {
    for (const Tier tier : kTiers) {
      const auto uses = [&](const PlanRow& row) { return peak_of(row, tier) > 0; };
      if (std::ranges::any_of(table.rows, uses)) tiers_.push_back(tier);
    }
    figures_ = {{"step"}, {"tokens/s"}, {"MFU"}};
    for (const Tier tier : tiers_) figures_.push_back({std::string(name_of(tier))});
    figures_.push_back({"limit"});
    for (const PlanRow& row : table.rows) add_figures(row);
    set_label_widths();
  }

  std::string text() const {
    std::string text = legend();
    text += line(titles_, figure_line(0));
    for (std::size_t r = 0; r < table_.rows.size(); ++r) {
      const PlanRow& row = table_.rows[r];
      const std::string figures = row.outcome.forecast.has_value()
                                      ? figure_line(r + 1)
                                      : clipped(short_refusal(row.outcome), figures_width());
      text += "\n" + line(row.labels, figures);
    }
    return text;
  }

 private:
  void add_figures(const PlanRow& row) {
    Cells cells(figures_.size());
    if (row.outcome.forecast.has_value()) {
      const RunForecast& forecast = *row.outcome.forecast;
      cells = {seconds_cell(forecast.step_s), count_cell(forecast.tokens_per_s()),
               fmt::format("{:.1f} %", 100 * forecast.mfu())};
      for (const Tier tier : tiers_) cells.push_back(format_size(peak_of(row, tier)));
      cells.emplace_back(bottleneck_of(forecast));
    }
    for (std::size_t f = 0; f < cells.size(); ++f) figures_[f].push_back(std::move(cells[f]));
  }

  static std::size_t width_of(const Cells& cells) {
    std::size_t width = 0;
    for (const std::string& cell : cells) width = std::max(width, cell.size());
    return width;
  }

  std::size_t figures_width() const {
    const std::size_t used = labels_width() + kGap.size();
    return used < kLineWidth ? kLineWidth - used : 0;
  }

  std::size_t labels_width() const {
    std::size_t width = 0;
    for (const std::size_t label : label_widths_) width += label + kGap.size();
    return width < kGap.size() ? 0 : width - kGap.size();
  }

  // Returns the width of a line in which every cell is whole.
  std::size_t whole_width() const {
    std::size_t width = labels_width();
    for (const Cells& cells : figures_) width += kGap.size() + width_of(cells);
    return width;
  }

  // Gives labels their columns. Where lines would be too long, letters stand for the titles, and
  // then the widest labels are clipped.
  void set_label_widths() {
    titles_ = table_.titles;
    measure_labels();
    if (whole_width() > kLineWidth) {
      for (std::size_t t = 0; t < titles_.size(); ++t) {
        titles_[t] = std::string(1, static_cast<char>('a' + t % 26));
      }
      measure_labels();
    }
    while (whole_width() > kLineWidth) {
      const auto widest = std::ranges::max_element(label_widths_);
      if (widest == label_widths_.end() || *widest <= kLeastLabelWidth) return;
      --*widest;
    }
  }

  void measure_labels() {
    label_widths_.clear();
    for (std::size_t t = 0; t < titles_.size(); ++t) {
      Cells cells = {titles_[t]};
      for (const PlanRow& row : table_.rows) cells.push_back(row.labels[t]);
      label_widths_.push_back(width_of(cells));
    }
  }

  std::string legend() const {
    std::string text;
    for (std::size_t t = 0; t < titles_.size(); ++t) {
      if (titles_[t] != table_.titles[t]) {
        text += fmt::format("{} = {}\n", titles_[t], table_.titles[t]);
      }
    }
    return text;
  }

  std::string figure_line(std::size_t row) const {
    std::string text;
    for (std::size_t f = 0; f < figures_.size(); ++f) {
      const std::string& cell = figures_[f][row];
      const bool is_last = f + 1 == figures_.size();
      text += (f == 0 ? "" : std::string(kGap)) +
              (is_last ? cell : fmt::format("{:>{}}", cell, width_of(figures_[f])));
    }
    return text;
  }

  std::string line(const Cells& labels, const std::string& figures) const {
    std::string text;
    for (std::size_t l = 0; l < labels.size(); ++l) {
      text += fmt::format("{:<{}}{}", clipped(labels[l], label_widths_[l]), label_widths_[l], kGap);
    }
    return text + figures;
  }

  const PlanTable& table_;
  std::vector<Tier> tiers_;     // that any plan uses
  std::vector<Cells> figures_;  // by column: the title, then a cell for each row
  Cells titles_;                // of labels, as printed
  std::vector<std::size_t> label_widths_;
};

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(const Cells& cells) {
  std::string text;
  for (std::size_t c = 0; c < cells.size(); ++c) text += (c == 0 ? "" : ",") + csv_field(cells[c]);
  return text;
}

ordered_json row_json(const PlanTable& table, const PlanRow& row) {
  ordered_json flags = ordered_json::object();
  for (std::size_t t = 0; t < table.titles.size(); ++t) flags[table.titles[t]] = row.labels[t];
  ordered_json json = {{"name", "plan"}, {"flags", flags}};
  json["fits"] = row.outcome.forecast.has_value();
  if (!row.outcome.forecast.has_value()) {
    json["lacks_memory"] = row.outcome.lacks_memory;
    json["reason"] = row.outcome.refusal;
    return json;
  }
  const RunForecast& forecast = *row.outcome.forecast;
  json["step_s"] = forecast.step_s;
  json["tokens_per_s"] = forecast.tokens_per_s();
  json["mfu"] = forecast.mfu();
  json["bubble_share"] = forecast.bubble_share;
  json["bottleneck"] = bottleneck_of(forecast);
  for (const Tier tier : kTiers) {
    json[fmt::format("{}_peak_bytes", name_of(tier))] = peak_of(row, tier);
  }
  return json;
}

}  // namespace

std::string seconds_cell(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.3g} ms", 1e3 * seconds);
  return seconds < 999.5 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::string count_cell(double count) {
  constexpr std::array<std::string_view, 5> kUnits = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", count, kUnits.at(unit));
}

std::string short_refusal(const PlanOutcome& outcome) {
  constexpr std::string_view kPrefix = "the step does not fit: ";
  std::string text = outcome.refusal;
  if (text.starts_with(kPrefix)) text = text.substr(kPrefix.size());
  if (outcome.lacks_memory) text = text.substr(0, text.find(" but its budget"));
  return (outcome.lacks_memory ? "no room: " : "") + text;
}

std::string to_text(const PlanTable& table) { return TextTable(table).text(); }

std::string to_csv(const PlanTable& table) {
  Cells names = table.titles;
  for (const char* const name : {"step_s", "tokens_per_s", "mfu", "bubble_share", "bottleneck",
                                 "device_peak_bytes", "host_peak_bytes", "nvme_peak_bytes"}) {
    names.emplace_back(name);
  }
  const std::size_t figures = names.size() - table.titles.size();
  names.emplace_back("reason");
  std::string text = csv_line(names);
  for (const PlanRow& row : table.rows) {
    Cells cells = row.labels;
    if (row.outcome.forecast.has_value()) {
      const RunForecast& forecast = *row.outcome.forecast;
      for (const double figure :
           {forecast.step_s, forecast.tokens_per_s(), forecast.mfu(), forecast.bubble_share}) {
        cells.push_back(fmt::format("{:.6g}", figure));
      }
      cells.emplace_back(bottleneck_of(forecast));
      for (const Tier tier : kTiers) cells.push_back(fmt::format("{}", peak_of(row, tier)));
    } else {
      cells.resize(cells.size() + figures);
    }
    cells.push_back(row.outcome.refusal);
    text += "\n" + csv_line(cells);
  }
  return text;
}

std::string to_json(const PlanTable& table, std::string_view schema,
                    const std::optional<std::string>& machine) {
  ordered_json results = ordered_json::array();
  for (const PlanRow& row : table.rows) results.push_back(row_json(table, row));
  const ordered_json json = {{"schema", schema},
                             {"version", terrace_version()},
                             {"host", ordered_json::parse(host_facts_json())},
                             {"machine", machine ? ordered_json(*machine) : ordered_json(nullptr)},
                             {"results", results}};
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace terrace
