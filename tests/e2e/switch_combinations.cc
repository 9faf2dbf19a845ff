#include "tests/e2e/switch_combinations.h"

#include <fmt/format.h>

#include <random>
#include <set>
#include <tuple>

namespace terrace {
namespace {

// Containers may forbid io_uring.
std::vector<std::string> io_engines() {
  if (is_ok_here("io_uring")) return {"posix", "io_uring"};
  return {"posix"};
}

// The settings of each switch. A combination has an index into each list.
const std::vector<std::vector<std::string>>& settings() {
  static const std::vector<std::string> kPlaces = {"auto", "device", "host", "nvme"};
  static const std::vector<std::vector<std::string>> kSettings = {
      {"bf16", "fp32"}, {"unified", "tight", "roomy"},
      kPlaces,          kPlaces,
      kPlaces,          kPlaces,
      {"none", "full"}, {"layer-major", "micro-batch-major"},
      {"1", "4"},       {"1", "2", "3"},
      io_engines(),     {"split", "fp32"}};
  return kSettings;
}

using Choice = std::vector<std::size_t>;
using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

SwitchCombination combination_of(const Choice& choice) {
  const auto setting = [&](std::size_t i) { return settings().at(i).at(choice.at(i)); };
  SwitchCombination combination;
  combination.precision = setting(0);
  combination.has_device = setting(1) != "unified";
  combination.is_tight = setting(1) == "tight";
  // Without a device this place does not exist.
  const auto place = [&](std::size_t i) {
    return setting(i) == "device" && !combination.has_device ? "host" : setting(i);
  };
  combination.parameters = place(2);
  combination.gradients = place(3);
  combination.optimizer = place(4);
  combination.activations = place(5);
  combination.recompute = setting(6);
  combination.order = setting(7);
  combination.lookahead = setting(8);
  combination.threads = setting(9);
  combination.io_engine = setting(10);
  // fp32 parameters cannot be split.
  combination.master_weights = combination.precision == "bf16" ? setting(11) : "fp32";
  return combination;
}

Choice random_choice(std::mt19937_64& random) {
  Choice choice;
  for (const auto& levels : settings()) choice.push_back(random() % levels.size());
  return choice;
}

std::set<Pair> pairs_of(const Choice& choice) {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < choice.size(); ++a) {
    for (std::size_t b = a + 1; b < choice.size(); ++b) {
      pairs.insert({a, choice[a], b, choice[b]});
    }
  }
  return pairs;
}

std::set<Pair> every_pair() {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < settings().size(); ++a) {
    for (std::size_t b = a + 1; b < settings().size(); ++b) {
      for (std::size_t i = 0; i < settings()[a].size(); ++i) {
        for (std::size_t j = 0; j < settings()[b].size(); ++j) pairs.insert({a, i, b, j});
      }
    }
  }
  return pairs;
}

// The bytes of a parameter in each state, for the precisions of the interface.
struct StateBytes {
  double parameters;
  double gradients = 4;
  double optimizer;
};

StateBytes bytes_of(const SwitchCombination& combination) {
  if (combination.precision == "bf16") {  // two moments, and the master or the rest of it
    return {.parameters = 2, .optimizer = combination.master_weights == "split" ? 10.0 : 12.0};
  }
  return {.parameters = 4, .optimizer = 8};
}

double parameters_of(const std::string& output) {
  const std::string before = "model: ";
  return std::stod(output.substr(output.find(before) + before.size()));
}

// Expects what the program says about itself before the first step.
void expect_said(const SwitchCombination& combination, const std::string& output) {
  std::vector<std::string> said = {
      fmt::format(", {}\n", combination.order),
      fmt::format("lookahead {}\n", combination.lookahead),
      fmt::format("\nthreads: {} for compute", combination.threads),
      combination.recompute == "none" ? " 0 of " : " blocks recomputed"};
  if (combination.uses_nvme()) said.push_back(" by " + combination.io_engine);
  if (combination.precision == "bf16") {
    said.push_back(
        combination.master_weights == "split"
            ? "16 bytes per parameter: 2 parameter, 4 gradient, 8 moments, 2 rest of"
            : "18 bytes per parameter: 2 parameter, 4 gradient, 8 moments, 4 fp32 master");
  }
  for (const std::string& text : said) {
    EXPECT_NE(output.find(text), std::string::npos) << text << " is not in:\n" << output;
  }
  if (combination.recompute == "full") {
    EXPECT_EQ(output.find(" 0 of "), std::string::npos) << output;
  }
}

// Expects everything that lives on the drive to be read and written at least once in each step.
void expect_traffic(const SwitchCombination& combination, const std::vector<MetricsRow>& rows,
                    double parameters) {
  const StateBytes bytes = bytes_of(combination);
  const double steps = static_cast<double>(rows.size());
  double on_drive = 0;
  if (combination.parameters == "nvme") on_drive += bytes.parameters * parameters;
  if (combination.gradients == "nvme") on_drive += bytes.gradients * parameters;
  if (combination.optimizer == "nvme") on_drive += bytes.optimizer * parameters;
  EXPECT_GE(sum_of(rows, "nvme_read_bytes"), steps * on_drive);
  EXPECT_GE(sum_of(rows, "nvme_write_bytes"), steps * on_drive);
  const bool drive = sum_of(rows, "nvme_write_bytes") > 0;
  EXPECT_TRUE(drive || !combination.uses_nvme());
  if (combination.parameters == "nvme") {
    EXPECT_GE(sum_of(rows, "parameter_nvme_read_bytes"), steps * bytes.parameters * parameters);
  } else if (combination.parameters != "auto") {
    EXPECT_EQ(sum_of(rows, "parameter_nvme_read_bytes"), 0);
  }
  const bool device_peak = sum_of(rows, "device_peak_bytes") > 0;
  EXPECT_EQ(device_peak, combination.has_device);
  if (!combination.has_device) return;
  if (combination.parameters == "host" || combination.parameters == "nvme") {
    EXPECT_GE(sum_of(rows, "parameter_upload_bytes"), steps * bytes.parameters * parameters);
  }
  if (combination.gradients == "host" || combination.gradients == "nvme") {
    EXPECT_GE(sum_of(rows, "download_bytes"), steps * bytes.gradients * parameters);
  }
}

}  // namespace

bool SwitchCombination::uses_nvme() const {
  return parameters == "nvme" || gradients == "nvme" || optimizer == "nvme" ||
         activations == "nvme";
}

Arguments SwitchCombination::arguments() const {
  return {"--precision",         precision,     "--place-parameters", parameters,
          "--place-gradients",   gradients,     "--place-optimizer",  optimizer,
          "--place-activations", activations,   "--recompute",        recompute,
          "--micro-batch-order", order,         "--lookahead",        lookahead,
          "--threads",           threads,       "--io-engine",        io_engine,
          "--master-weights",    master_weights};
}

std::vector<SwitchCombination> all_pairs(std::uint64_t seed) {
  constexpr int kCandidates = 40;
  std::mt19937_64 random(seed);
  std::set<Pair> missing = every_pair();
  std::vector<SwitchCombination> combinations;
  while (!missing.empty()) {
    Choice best;
    std::size_t most = 0;
    for (int i = 0; i < kCandidates || most == 0; ++i) {
      const Choice choice = random_choice(random);
      std::size_t covers = 0;
      for (const Pair& pair : pairs_of(choice)) covers += missing.count(pair);
      if (covers <= most) continue;
      most = covers;
      best = choice;
    }
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    combinations.push_back(combination_of(best));
  }
  return combinations;
}

std::vector<SwitchCombination> random_combinations(std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::vector<SwitchCombination> combinations;
  for (int i = 0; i < count; ++i) combinations.push_back(combination_of(random_choice(random)));
  return combinations;
}

void expect_bits_of(const TinyTraining& training, const SwitchCombination& combination,
                    const std::string& run, const std::string& reference) {
  Arguments arguments = combination.arguments() + training.nvme();
  if (combination.has_device) {
    const std::string size =
        combination.is_tight ? training.least_device_memory(arguments) : "64MiB";
    arguments = arguments + Arguments{"--device-memory", size};
  }
  SCOPED_TRACE(fmt::format("{}", fmt::join(arguments, " ")));
  const Outcome outcome =
      training.train(run, arguments + Arguments{"--max-steps", "6", "--validation-fraction", "0"});
  if (outcome.code != 0) return;
  training.expect_same(run, reference, "final");
  expect_said(combination, outcome.output);
  expect_traffic(combination, training.rows(run), parameters_of(outcome.output));
  EXPECT_TRUE(training.nvme_is_empty());
}

}  // namespace terrace
