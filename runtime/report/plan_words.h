#pragma once

#include <string>
#include <vector>

// The reasons of a plan (docs/dry-run.md) in words, units with equal reasons together.
namespace terrace::report {

struct StateWords {
  std::string state;  // "optimizer state"
  std::string units;  // "the embedding, blocks 0 to 3"
  std::string home;   // "nvme"
  double bytes = 0;   // of each of the units
  std::string reason;
};

struct UpdateWords {
  std::string units;
  std::string where;
  std::string when;
};

struct LoadWords {
  std::string units;
  std::string what;    // "2 of parameters"
  std::string issued;  // "3 units ahead"
  std::string limit;   // why not earlier
};

struct PlanWords {
  std::vector<std::string> tiers;  // sentences
  std::vector<StateWords> states;
  std::vector<UpdateWords> updates;
  std::vector<LoadWords> loads;

  bool is_empty() const { return states.empty() && updates.empty() && loads.empty(); }
};

// Reads the JSON text of `reasons` in run.json. Parts that are missing are left out.
PlanWords plan_words(const std::string& reasons_json);

// Returns a list of names for people: "the embedding, blocks 0 to 3, the head".
std::string joined_units(const std::vector<std::string>& names);

}  // namespace terrace::report
