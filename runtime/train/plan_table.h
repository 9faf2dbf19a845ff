#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/train/plan_forecast.h"

// Plans beside each other: for people, as CSV, and as JSON.
namespace terrace {

struct PlanRow {
  std::vector<std::string> labels;  // as many as there are titles
  PlanOutcome outcome;
};

struct PlanTable {
  std::vector<std::string> titles;  // of the labels: what differs between the plans
  std::vector<PlanRow> rows;
};

// Returns lines of at most 80 columns. A plan that is refused has its reason in place of figures.
std::string to_text(const PlanTable& table);
// Returns a line of names, and a line for each row (RFC 4180). Figures of a refused plan are empty.
std::string to_csv(const PlanTable& table);
// Returns a document with one result for each row. `machine`: of all rows; none if they differ.
std::string to_json(const PlanTable& table, std::string_view schema,
                    const std::optional<std::string>& machine);

// Return the cells of a table for people: "1.25 s", "85.1k".
std::string seconds_cell(double seconds);
std::string count_cell(double count);
// Returns a refusal in a few words: "host needs 372 GiB".
std::string short_refusal(const PlanOutcome& outcome);

}  // namespace terrace
