#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/e2e/tiny_training.h"

// Compares the needs that `terrace train --dry-run` tells with the needs of real runs.
namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

const Arguments kDryRun = {"--max-steps", "3", "--dry-run"};
const Arguments kDryRunAsJson = kDryRun + Arguments{"--json"};

// Expects that standard output is one document and nothing else.
json document_of(const Outcome& outcome) {
  json document = json::parse(outcome.output, nullptr, false);
  EXPECT_TRUE(document.is_object()) << outcome;
  if (!document.is_object()) return json::object();
  EXPECT_EQ(document.value("schema", ""), "terrace.dry_run/1");
  for (const char* key : {"version", "host", "fits", "here", "results"}) {
    EXPECT_TRUE(document.contains(key)) << key;
  }
  EXPECT_TRUE(document["host"].contains("memory_bytes"));
  return document;
}

json result_of(const json& document, const std::string& name) {
  for (const json& result : document.value("results", json::array())) {
    if (result.value("name", "") == name) return result;
  }
  ADD_FAILURE() << "no result " << name;
  return json::object();
}

std::uint64_t least_of(const json& document, const std::string& tier) {
  return result_of(document, tier).value("least_bytes", std::uint64_t{0});
}

std::string bytes_text(std::uint64_t bytes) { return fmt::format("{}B", bytes); }

TEST(DryRun, SaysWhatThisMachineLacks) {
  const TinyTraining training;
  const auto said = [&](const Arguments& more) {
    return training.train("run", kDryRun + more).output;
  };
  EXPECT_THAT(said({"--device-memory", "1000TiB"}),
              testing::ContainsRegex("--device-memory 1000 TiB .*more than the .* of this host: a "
                                     "run on this machine would exit with code 3\n"));
  EXPECT_THAT(said({"--nvme", "/proc", "--place-optimizer", "nvme"}),
              testing::ContainsRegex(
                  "nvme needs [0-9.]+ [KM]iB, but only 0 B are free here \\(/proc\\): a run "
                  "on this machine would exit with code 3\n"));
  EXPECT_THAT(
      said({"--nvme", training.path("none")}),
      HasSubstr("No such file or directory: a run on this machine would exit with code 2\n"));
  EXPECT_THAT(said({}), Not(HasSubstr("a run on this machine would exit with code")));
  EXPECT_FALSE(training.directory().has("run"));
}

// The step needs more than any host has, and no --host-memory is given.
TEST(DryRun, PlansForAnotherMachineWhereThisOneIsTooSmall) {
  const TinyTraining training;
  training.directory().write(
      "few.toml", fmt::format("model = \"nano\"\ndata = \"{}\"\n", training.path("text.txt")));
  const Arguments command = {"train",
                             "--config",
                             training.path("few.toml"),
                             "--max-steps",
                             "1",
                             "--micro-batch-size",
                             "8_000_000",
                             "--dry-run",
                             "--run-dir",
                             training.path("run"),
                             "--validation-fraction",
                             "0"};
  const Outcome outcome = run_program(command);
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex(
                  "host needs at least [0-9.]+ [GT]iB, but only [0-9.]+ "
                  "[MGT]iB may be used here: a run on this machine would exit with code"));
  Outcome run = run_program(command + Arguments{"--dry-run=off"});
  EXPECT_EQ(run.code, 3) << run;
  EXPECT_FALSE(training.directory().has("run"));
}

TEST(DryRun, NeedsTheDataAndTheWeights) {
  const TinyTraining training;
  const auto expect_usage_error = [&](const Arguments& more, const std::string& said) {
    for (const Arguments& flags : {kDryRun, kDryRunAsJson}) {
      const Outcome outcome = run_program(training.command("run", flags + more));
      EXPECT_EQ(outcome.code, 2) << outcome;
      EXPECT_THAT(outcome.errors, HasSubstr(said));
      EXPECT_EQ(outcome.output, "");
    }
  };
  expect_usage_error({"--init", "weights"}, "has no weights");
  // This is found before a step is compiled that does not fit.
  expect_usage_error({"--init", "weights", "--device-memory", "4KiB"}, "has no weights");
  fs::remove(training.path("text.txt"));
  expect_usage_error({}, "text.txt");
  EXPECT_FALSE(training.directory().has("run"));
}

TEST(DryRun, OfARunThatIsThereSaysWhatARunWouldMeet) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "3"});
  const auto rows = training.rows("run");
  EXPECT_THAT(training.train("run", kDryRun).output,
              HasSubstr("has the result of a finished run (final): a run on this machine would "
                        "exit with code 2\n"));
  EXPECT_EQ(training.rows("run"), rows);
  training.train("half", {"--max-steps", "3", "--stop-after-step", "2"});
  const Outcome rest = training.train("half", kDryRun + Arguments{"--resume", "auto"});
  EXPECT_THAT(rest.output, Not(HasSubstr("a run on this machine would exit with code")));
  // A checkpoint that a run would refuse is refused by a dry run.
  const Outcome other = run_program(
      training.command("half", kDryRun + Arguments{"--resume", "auto", "--seed", "99"}));
  EXPECT_EQ(other.code, 2) << other;
}

TEST(DryRun, AsJsonIsOneDocument) {
  const TinyTraining training;
  const Outcome outcome =
      training.train("run", kDryRunAsJson + training.nvme() +
                                Arguments{"--device-memory", "32MiB", "--place-optimizer", "nvme"});
  const json document = document_of(outcome);
  EXPECT_EQ(document.value("fits", false), true);
  EXPECT_EQ(document["here"], json::array());
  EXPECT_EQ(document["results"].size(), 6U);
  EXPECT_EQ(result_of(document, "device")["budget_bytes"], 32 * 1024 * 1024);
  EXPECT_TRUE(result_of(document, "nvme")["budget_bytes"].is_null());
  EXPECT_GT(result_of(document, "nvme")["accounts"]["optimizer_state"], 0);
  for (const char* tier : {"device", "host", "nvme"}) {
    const json result = result_of(document, tier);
    std::uint64_t sum = 0;
    for (const auto& [account, bytes] : result["accounts"].items()) {
      sum += bytes.get<std::uint64_t>();
    }
    EXPECT_LE(sum, result.value("peak_bytes", std::uint64_t{0})) << tier;
  }
  EXPECT_FALSE(training.directory().has("run"));
}

// The figures of a step are the figures in the rows of a run.
TEST(DryRun, AsJsonHasTheFiguresOfTheRun) {
  const TinyTraining training(4);
  const std::vector<Arguments> cases = {
      training.nvme() + Arguments{"--device-memory", "4MiB", "--place-optimizer", "nvme",
                                  "--place-parameters", "nvme"},
      {"--local-ranks", "2", "--zero-stage", "3"}};
  for (const Arguments& more : cases) {
    const json document = document_of(training.train("run", kDryRunAsJson + more));
    fs::remove_all(training.path("run"));
    training.train("run", more + Arguments{"--max-steps", "4", "--validation-fraction", "0.01"});
    const MetricsRow row = training.rows("run").at(2);
    const json step = result_of(document, "step");
    for (const char* column : {"upload_bytes", "download_bytes", "nvme_read_bytes",
                               "nvme_write_bytes", "collective_bytes"}) {
      EXPECT_EQ(step.value(column, -1.0), row.columns.at(column)) << column;
    }
    EXPECT_GT(step.value("ops", 0), 0);
    const json prediction = result_of(document, "prediction");
    EXPECT_GT(prediction.value("step_s", 0.0), 0);
    EXPECT_NEAR(prediction.value("tokens_per_s", 0.0) * prediction.value("step_s", 0.0),
                row.columns.at("tokens"), 1e-6 * row.columns.at("tokens"));
    EXPECT_NE(prediction.value("bottleneck", ""), "");
    for (const char* tier : {"device", "host"}) {
      EXPECT_EQ(result_of(document, tier).value("peak_bytes", -1.0),
                row.columns.at(fmt::format("{}_peak_bytes", tier)));
    }
    fs::remove_all(training.path("run"));
  }
}

TEST(DryRun, AsJsonSaysWhatWouldMakeItFit) {
  const TinyTraining training(3, 64);
  const std::string drive = training.path("nvme");
  const Arguments placed = {"--place-optimizer", "nvme"};
  const auto budgets = [&](const std::string& device, const std::string& host,
                           const std::string& nvme) {
    return placed + Arguments{"--device-memory", device, "--host-memory", host, "--nvme",
                              drive + ":" + nvme};
  };
  const std::vector<Arguments> cases = {budgets("1KiB", "1KiB", "1KiB"),
                                        budgets("64MiB", "1KiB", "64MiB"),
                                        budgets("1KiB", "64MiB", "1MiB")};
  for (const Arguments& asked : cases) {
    const Outcome refused = run_program(training.command("run", kDryRunAsJson + asked));
    EXPECT_EQ(refused.code, 3) << refused;
    EXPECT_THAT(refused.errors, HasSubstr("the step does not fit"));
    const json document = document_of(refused);
    EXPECT_EQ(document.value("fits", true), false);
    const auto least = [&](const char* tier) { return bytes_text(least_of(document, tier)); };
    training.train("run", budgets(least("device"), least("host"), least("nvme")) +
                              Arguments{"--max-steps", "1"});
    EXPECT_EQ(result_of(document, "device").value("budget_bytes", -1.0),
              asked.at(3) == "1KiB" ? 1024 : 64 * 1024 * 1024);
    fs::remove_all(training.path("run"));
  }
}

TEST(DryRun, JsonWithoutItIs2) {
  const TinyTraining training;
  const Outcome outcome = run_program(training.command("run", {"--max-steps", "3", "--json"}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--json works only with --dry-run"));
  EXPECT_EQ(outcome.output, "");
}

// A step of very many micro-batches is planned by its period, and its figures are of all of them.
TEST(DryRun, SaysWhichOpsAreRepeated) {
  const TinyTraining training;
  const Arguments many = {"--max-steps", "1", "--gradient-accumulation-steps", "5000"};
  EXPECT_THAT(training.train("run", many + Arguments{"--dry-run"}).output,
              HasSubstr("done 4995 times in a row"));
  const auto ops = [&](const char* micro_batches) {
    const json document =
        document_of(training.train("run", {"--max-steps", "1", "--dry-run", "--json",
                                           "--gradient-accumulation-steps", micro_batches}));
    return document.at("results").at(3).at("ops").get<std::int64_t>();
  };
  EXPECT_EQ(ops("5000") - ops("64"), (5000 - 64) * (ops("63") - ops("62")));
}

TEST(DryRun, ExplainsAUnit) {
  const TinyTraining training;
  const Outcome outcome = run_program(
      training.command("run", {"--max-steps", "3", "--dry-run", "--explain", "embedding"}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("reasons for the embedding:\n  parameters "));
  const std::vector<std::pair<Arguments, const char*>> wrong = {
      {{"--explain", "head"}, "--explain works only with --dry-run"},
      {{"--dry-run", "--json", "--explain", "head"}, "--explain with --json"},
      {{"--dry-run", "--explain", "tail"}, "--explain tail: no such unit"}};
  for (const auto& [flags, told] : wrong) {
    const Outcome refused =
        run_program(training.command("run", Arguments{"--max-steps", "3"} + flags));
    EXPECT_EQ(refused.code, 2) << refused;
    EXPECT_THAT(refused.errors, HasSubstr(told));
  }
}

TEST(DryRun, ARunKeepsTheReasonsOfItsPlan) {
  const TinyTraining training;
  training.train("run", {"--max-steps", "1"});
  const json run = json::parse(training.directory().read("run/run.json"));
  const json& units = run.at("reasons").at("units");
  ASSERT_FALSE(units.empty());
  EXPECT_EQ(units.front().at("name"), "the embedding");
  EXPECT_FALSE(units.front().at("states").empty());
}

// --- the least budgets --------------------------------------------------------------------------

// A training of nano without its budgets, and the flags of the tiers that have a budget.
struct Shape {
  Arguments flags;
  Arguments budgets;
};

// Draws whether there is device memory and a drive, where state lives, and how ranks divide it.
Shape drawn_shape(std::mt19937& random) {
  const auto one_of = [&random](const Arguments& list) { return list[random() % list.size()]; };
  const bool has_device = random() % 2 == 0;
  const bool has_drive = random() % 2 == 0;
  Shape shape;
  shape.flags = {"--model",
                 "nano",
                 "--sequence-length",
                 one_of({"32", "64"}),
                 "--micro-batch-size",
                 one_of({"1", "2", "4"}),
                 "--gradient-accumulation-steps",
                 one_of({"1", "2", "3"}),
                 "--recompute",
                 one_of({"auto", "none", "full"}),
                 "--precision",
                 one_of({"bf16", "bf16", "fp32"}),
                 "--max-grad-norm",
                 one_of({"0", "1"}),
                 "--validation-fraction",
                 one_of({"0", "0.1"}),
                 "--threads",
                 one_of({"1", "2"})};
  if (has_device) shape.budgets.emplace_back("--device-memory");
  shape.budgets.emplace_back("--host-memory");
  if (has_drive) shape.budgets.emplace_back("--nvme");
  for (const char* state : {"--place-parameters", "--place-optimizer", "--place-activations"}) {
    if (has_drive && random() % 3 == 0) shape.flags = shape.flags + Arguments{state, "nvme"};
  }
  const std::vector<Arguments> meshes = {
      {},
      {"--local-ranks", "2", "--pipeline-parallel", "2"},
      {"--local-ranks", "2", "--zero-stage", one_of({"1", "3"})},
      {"--local-ranks", "4", "--pipeline-parallel", "2", "--zero-stage", "2"}};
  shape.flags = shape.flags + meshes[random() % meshes.size()];
  return shape;
}

std::string tier_of(const std::string& flag) {
  return flag == "--nvme" ? "nvme" : flag == "--device-memory" ? "device" : "host";
}

// Tries the least budget of one tier beside plenty of the others. Expects a run to be accepted with
// it, and to be refused with clearly less.
void expect_true_least(const TinyTraining& training, const Shape& shape, const std::string& flag) {
  const auto outcome_with = [&](const std::string& size, const Arguments& kind) {
    Arguments arguments = shape.flags;
    for (const std::string& each : shape.budgets) {
      const std::string bytes = each == flag ? size : "48MiB";
      arguments = arguments +
                  Arguments{each, each == "--nvme" ? training.path("nvme") + ":" + bytes : bytes};
    }
    return run_program(training.command("run", arguments + kind));
  };
  const json document = document_of(outcome_with("48MiB", kDryRunAsJson));
  const std::uint64_t least = least_of(document, tier_of(flag));
  if (least == 0) {  // all of it can stay elsewhere
    EXPECT_EQ(flag, "--nvme");
    return;
  }
  const Arguments kRun = {"--max-steps", "1"};
  for (const Arguments& kind : {kDryRun, kRun}) {
    const Outcome fits = outcome_with(bytes_text(least), kind);
    EXPECT_EQ(fits.code, 0) << least << '\n' << fits;
  }
  fs::remove_all(training.path("run"));
  const std::uint64_t less = least - std::min(least, std::max(least * 3 / 100, 65536UL));
  if (less == 0) return;
  for (const Arguments& kind : {kDryRun, kRun}) {
    const Outcome refused = outcome_with(bytes_text(less), kind);
    EXPECT_EQ(refused.code, 3) << less << '\n' << refused;
    EXPECT_FALSE(training.directory().has("run"));
  }
}

TEST(DryRun, TheLeastBudgetsAreTrue) {
  constexpr int kShapes = 8;
  const TinyTraining training;
  std::mt19937 random(5);
  for (int i = 0; i < kShapes; ++i) {
    const Shape shape = drawn_shape(random);
    for (const std::string& flag : shape.budgets) {
      SCOPED_TRACE(fmt::format("shape {}: {}, {}", i, fmt::join(shape.flags, " "), flag));
      expect_true_least(training, shape, flag);
    }
  }
}

// --- runs that are refused ----------------------------------------------------------------------

TEST(RefusedRun, LeavesNoRunDirectory) {
  const TinyTraining training;
  const auto expect_nothing_of = [&](const Arguments& more) {
    const Outcome outcome =
        run_program(training.command("runs/deep/run", Arguments{"--max-steps", "2"} + more));
    EXPECT_EQ(outcome.code, 3) << outcome;
    EXPECT_FALSE(training.directory().has("runs")) << outcome;
  };
  const Arguments on_drive = {"--place-optimizer", "nvme"};
  expect_nothing_of(on_drive + Arguments{"--nvme", "/proc"});
  // Two drives do not get equal parts of the blocks. That is found only when the drives are opened.
  fs::create_directory(training.path("second"));
  const json document =
      document_of(training.train("x", kDryRunAsJson + on_drive + training.nvme() +
                                          Arguments{"--nvme", training.path("second")}));
  const std::string half = bytes_text((least_of(document, "nvme") + 1) / 2);
  expect_nothing_of(on_drive + Arguments{"--nvme", training.path("nvme") + ":" + half, "--nvme",
                                         training.path("second") + ":" + half});
  // Directories that existed before stay.
  fs::create_directories(training.path("runs/deep"));
  const Outcome outcome = run_program(training.command(
      "runs/deep/run", Arguments{"--max-steps", "2", "--nvme", "/proc"} + on_drive));
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_TRUE(training.directory().has("runs/deep"));
  EXPECT_FALSE(training.directory().has("runs/deep/run"));
}

}  // namespace
}  // namespace terrace
