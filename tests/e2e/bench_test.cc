#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "tests/e2e/program_run.h"
#include "tests/runtime/cli/process_state.h"

// The benchmarks run, as small as possible, and print what interface.md says. Their measurements
// are not checked: times are no test.
namespace terrace {
namespace {

using nlohmann::json;

Outcome run_bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  return run_program(arguments);
}

// Runs a benchmark that must end well, and holds its document to the contract. Returns the names of
// its results.
std::vector<std::string> names_of_results(
    const std::string& bench, const std::vector<std::string>& more = std::vector<std::string>()) {
  std::vector<std::string> arguments = {bench, "--small", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_bench(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome;
  const json document = json::parse(outcome.output);
  EXPECT_EQ(document.at("schema"), "terrace.bench/1");
  EXPECT_EQ(document.at("benchmark"), bench);
  EXPECT_TRUE(document.at("version").is_string());
  EXPECT_THAT(document.at("started").get<std::string>(), testing::EndsWith("Z"));
  const json& host = document.at("host");
  EXPECT_FALSE(host.at("cpu").get<std::string>().empty());
  EXPECT_LT(0, host.at("usable_threads").get<int>());
  EXPECT_LT(0U, host.at("memory_bytes").get<std::size_t>());
  EXPECT_THAT(host.at("kernel").get<std::string>(), testing::StartsWith("Linux "));
  std::vector<std::string> names;
  for (const json& result : document.at("results")) {
    names.push_back(result.at("name"));
    const double value = result.at("value");
    const double limit = result.at("limit");
    EXPECT_LT(0, value) << names.back();
    const std::string unit = result.at("unit");
    const bool rate = unit.ends_with("/s");
    // fio counts whole milliseconds of a processor: a short run may take none.
    if (unit == "ms/GB") {
      EXPECT_LE(0, limit) << names.back();
    } else {
      EXPECT_LT(0, limit) << names.back();
    }
    EXPECT_DOUBLE_EQ(result.at("ratio").get<double>(), rate ? value / limit : limit / value)
        << names.back() << " in " << unit;
    EXPECT_FALSE(result.at("limit_is").get<std::string>().empty()) << names.back();
    EXPECT_EQ(result.at("repetitions"), 2) << names.back();
    EXPECT_LE(result.at("value_range").at(0).get<double>(), value);
    EXPECT_GE(result.at("value_range").at(1).get<double>(), value);
    EXPECT_EQ(result.at("value_samples").size(), 2U) << names.back();
    EXPECT_EQ(result.at("limit_samples").size(), 2U) << names.back();
    EXPECT_EQ(result.at("unsteady").get<bool>(),
              !result.at("spread").is_number() || result.at("spread").get<double>() > 2)
        << result;
    const json details = result.value("details", json::object());
    for (const auto& [name, detail] : details.items()) {
      EXPECT_TRUE(detail.at("value").is_number() || detail.at("value").is_null()) << name;
      EXPECT_TRUE(detail.at("unit").is_string()) << name;
    }
  }
  EXPECT_EQ(document.at("complete"), true);
  EXPECT_FALSE(document.contains("cut_short"));
  return names;
}

TEST(BenchCommand, CopyHasTheResultsOfTheInterface) {
  EXPECT_THAT(names_of_results("copy"),
              testing::UnorderedElementsAre("memcpy", "upload", "download", "upload_and_download"));
}

TEST(BenchCommand, StepsOfRanksHaveTheirResults) {
  EXPECT_THAT(names_of_results("step", {"--zero-stage", "3", "--local-ranks", "2"}),
              testing::UnorderedElementsAre("zero_3_of_2_ranks_tokens", "zero_3_of_2_ranks_states",
                                            "zero_3_of_2_ranks_sent"));
  const Outcome outcome = run_bench({"copy", "--local-ranks", "2"});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(
      outcome.errors,
      testing::HasSubstr("--local-ranks has no effect here; leave it out; it is a flag of bench "
                         "step"));
}

TEST(BenchCommand, OptimizerHasTheResultsOfTheInterface) {
  const TemporaryDirectory directory;
  EXPECT_THAT(names_of_results("optimizer", {"--nvme", directory.path()}),
              testing::UnorderedElementsAre(
                  "adamw_fp32", "adamw_split", "adamw_bf16_moments", "adamw_int8_moments",
                  "lion_fp32", "lion_split", "lion_bf16_moments", "lion_int8_moments", "sgd_fp32",
                  "sgd_split", "sgd_bf16_moments", "sgd_int8_moments", "norm", "streamed_update"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(BenchCommand, IoHasTheResultsOfTheInterface) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path("a"));
  std::filesystem::create_directory(directory.path("b"));
  EXPECT_THAT(
      names_of_results("io", {"--nvme", directory.path("a"), "--nvme", directory.path("b")}),
      testing::UnorderedElementsAre(
          "store_read", "store_write", "store_mixed", "store_read_unchecked",
          "store_write_unchecked", "store_mixed_unchecked", "store_read_cpu", "store_write_cpu",
          "store_mixed_cpu", "store_read_unchecked_cpu", "store_write_unchecked_cpu",
          "store_mixed_unchecked_cpu", "store_read_checksums", "store_write_checksums",
          "store_mixed_checksums", "store_read_wide", "store_write_wide", "store_mixed_wide"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path("a")));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path("b")));
}

TEST(BenchCommand, KernelHasEveryKernelOfAModelInBothTypes) {
  const std::vector<std::string> kernels = {"attention_forward",
                                            "attention_backward",
                                            "head_loss",
                                            "norm_forward",
                                            "norm_backward",
                                            "activation_forward",
                                            "activation_backward",
                                            "add",
                                            "rope",
                                            "matmul_up_one_row",
                                            "matmul_head_one_row",
                                            "matmul_head_eight_rows"};
  std::vector<std::string> names;
  for (const std::string type : {"nano_bf16_", "nano_fp32_"}) {
    for (const std::string& kernel : kernels) names.push_back(type + kernel);
    for (const std::string linear : {"qkv", "projection", "up", "down"}) {
      for (const std::string what : {"_forward", "_backward_input", "_backward_weight"}) {
        names.push_back(type + "matmul_" + linear + what);
      }
    }
  }
  EXPECT_THAT(names_of_results("kernel"), testing::UnorderedElementsAreArray(names));
}

TEST(BenchCommand, CollectiveHasEveryCollectiveInBothTypes) {
  std::vector<std::string> names;
  for (const std::string type : {"fp32", "bf16"}) {
    for (const std::string what :
         {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"}) {
      names.push_back("thread_" + what + "_" + type + "_64kib");
    }
  }
  EXPECT_THAT(names_of_results("collective"), testing::UnorderedElementsAreArray(names));
}

TEST(BenchCommand, StepHasSpeedElementsAndPredictions) {
  const TemporaryDirectory directory;
  const std::vector<std::string> names = names_of_results("step", {"--nvme", directory.path()});
  EXPECT_THAT(names, testing::IsSupersetOf({"nano_bf16_tokens", "nano_bf16_matmul_in_step",
                                            "nano_bf16_elements", "nano_bf16_predicted",
                                            "nano_fp32_tokens", "nano_fp32_matmul_in_step",
                                            "nano_fp32_elements", "nano_fp32_predicted"}));
  const auto predicted = std::ranges::count_if(
      names, [](const std::string& name) { return name.starts_with("step_predicted_nano_"); });
  EXPECT_EQ(predicted, 10);
  EXPECT_EQ(names.size(), 18U);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(BenchCommand, OverlapHasStepsWithClippingAndWithout) {
  const TemporaryDirectory directory;
  EXPECT_THAT(names_of_results("overlap", {"--nvme", directory.path()}),
              testing::UnorderedElementsAre("nano_bf16_32_tokens_unclipped",
                                            "nano_bf16_32_tokens_clipped"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// The directory is refused before anything is measured; measurements are announced line by line.
TEST(BenchCommand, ADirectoryThatIsNotThereIsRefusedFirst) {
  const TemporaryDirectory directory;
  for (const char* const kind :
       {"io", "copy", "optimizer", "kernel", "step", "collective", "simulator", "overlap"}) {
    const Outcome outcome = run_bench({kind, "--small", "--nvme", directory.path("none")});
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr(directory.path("none")));
    EXPECT_THAT(outcome.errors, testing::Not(testing::HasSubstr(fmt::format("bench {}: ", kind))));
  }
}

TEST(BenchCommand, ADirectoryThatCannotBeWrittenToIsRefusedFirst) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0500), 0);
  Denied denied;
  denied.write_permission_of_root = true;
  for (const char* const kind : {"io", "optimizer", "step", "simulator", "overlap"}) {
    const Outcome outcome =
        run_program({"bench", kind, "--small", "--nvme", directory.path()}, denied);
    if (outcome.code == kNotStarted) GTEST_SKIP() << "root cannot be denied anything here";
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr("Permission denied"));
    EXPECT_THAT(outcome.errors, testing::Not(testing::HasSubstr(fmt::format("bench {}: ", kind))));
  }
}

// Makes a fio that answers when it is tried, and then measures until it is ended.
void make_endless_fio(const TemporaryDirectory& directory) {
  const std::string answer =
      R"({"jobs": [{"error": 0, "read": {"io_bytes": 1000, "runtime": 1}, )"
      R"("write": {"io_bytes": 0, "runtime": 0}, "job_runtime": 1, "usr_cpu": 0, "sys_cpu": 0}]})";
  const std::string script = "#!/bin/sh\ncd " + directory.path() +
                             "\n"
                             "if [ \"$1\" = --version ]; then echo fio-0; exit; fi\n"
                             "if mkdir tried; then echo '" +
                             answer +
                             "'; exit; fi\n"
                             "echo $$ > new && mv new process && exec sleep 600\n";
  ASSERT_EQ(::chmod(directory.write("bin/fio", script).c_str(), 0755), 0);
}

class SignalledBench : public testing::TestWithParam<int> {};

TEST_P(SignalledBench, LeavesNeitherFilesNorFio) {
  const TemporaryDirectory directory;
  make_endless_fio(directory);
  std::filesystem::create_directory(directory.path("drive"));
  ProgramRun run({"bench", "io", "--small", "--nvme", directory.path("drive")}, {},
                 {"env", "PATH=" + directory.path("bin") + ":/usr/bin:/bin"});
  ASSERT_TRUE(run.wait_until([&] { return directory.has("process"); })) << run.wait();
  std::string fio = directory.read("process");
  fio.pop_back();
  EXPECT_FALSE(has_ended(fio));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path("drive")));
  run.send(GetParam());
  const Outcome outcome = run.wait();
  if (GetParam() == SIGKILL) {
    EXPECT_EQ(outcome.signal, GetParam());
  } else {
    EXPECT_EQ(outcome.code, 128 + GetParam()) << outcome;
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path("drive")));
  const auto until = std::chrono::steady_clock::now() + kHangsAfter;
  while (!has_ended(fio) && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(has_ended(fio));
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalledBench,
                         testing::Values(SIGHUP, SIGINT, SIGTERM, SIGKILL));

// Whatever ends a benchmark, the system takes the space back.
TEST(BenchCommand, EnginesHaveNoFilesWithNames) {
  for (const char* const kind : {"optimizer", "overlap"}) {
    const TemporaryDirectory directory;
    ProgramRun run({"bench", kind, "--small", "--repetitions", "100", "--nvme", directory.path()});
    EXPECT_TRUE(run.wait_until([&] {
      return !run.open_files("slots.bin").empty() && std::filesystem::is_empty(directory.path());
    })) << kind;
  }
}

TEST(BenchCommand, WithoutJsonItPrintsATable) {
  const Outcome outcome = run_bench({"copy", "--small"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, testing::HasSubstr("\nupload_and_download "));
  EXPECT_THAT(outcome.output, testing::HasSubstr("2 rounds; the limit is a streaming copy in"));
}

TEST(BenchCommand, ResultsNameNoPlaceOfTheMachine) {
  const TemporaryDirectory directory;
  for (const std::string& flag : {"--nvme=" + directory.path(), std::string("--nvme")}) {
    std::vector<std::string> arguments = {"copy", "--small", "--json", flag};
    if (flag == "--nvme") arguments.push_back(directory.path());
    const Outcome outcome = run_bench(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_THAT(outcome.output, testing::Not(testing::HasSubstr(directory.path())));
    EXPECT_THAT(outcome.output, testing::HasSubstr("PATH"));
  }
}

TEST(BenchCommand, MeasuresTheChosenResultsAlone) {
  const TemporaryDirectory directory;
  EXPECT_THAT(names_of_results("copy", {"--only", "memcpy", "up*ad"}),
              testing::UnorderedElementsAre("memcpy", "upload", "upload_and_download"));
  EXPECT_THAT(
      names_of_results("io", {"--nvme", directory.path(), "--only", "*_wide"}),
      testing::UnorderedElementsAre("store_read_wide", "store_write_wide", "store_mixed_wide"));
  EXPECT_THAT(names_of_results("simulator", {"--nvme", directory.path(), "--only",
                                             "step_predicted_nano_fp32_memory"}),
              testing::ElementsAre("step_predicted_nano_fp32_memory"));
  const Outcome wrong = run_bench({"collective", "--small", "--only", "thread_all_reduse*"});
  EXPECT_EQ(wrong.code, 2) << wrong;
  EXPECT_THAT(wrong.errors, testing::HasSubstr("--only thread_all_reduse*: no result has this "
                                               "name; its results are: thread_all_reduce_fp32"));
}

TEST(BenchCommand, ATableWithoutRowsIsAFailure) {
  const Outcome outcome = run_bench({"copy", "--time-limit", "0.001"});
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, testing::HasSubstr("the table has no rows"));
}

TEST(BenchCommand, IoHasRequestsASecondPercentilesAndItsMatrix) {
  const TemporaryDirectory directory;
  const Outcome outcome =
      run_bench({"io", "--small", "--json", "--nvme", directory.path(), "--only", "store_read*"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  const json document = json::parse(outcome.output);
  const json& read = document.at("results").at(0);
  EXPECT_EQ(read.at("name"), "store_read");
  const json& details = read.at("details");
  EXPECT_NEAR(details.at("iops").at("value").get<double>() * 512 * 1024,
              read.at("value").get<double>() * 1e9, 1e3);
  EXPECT_LE(details.at("latency_p50").at("value"), details.at("latency_p99").at("value"));
  std::set<std::string> tools;
  for (const json& cell : read.at("matrix")) {
    tools.insert(cell.at("tool").get<std::string>());
    EXPECT_LT(0, cell.at("gb_per_s").get<double>());
    EXPECT_LT(0, cell.at("block_bytes").get<int>());
    EXPECT_LT(0, cell.at("depth").get<int>());
  }
  EXPECT_TRUE(tools.contains("store"));
  EXPECT_LE(2U, tools.size());
}

TEST(BenchCommand, RefusesWhatItCannotRun) {
  const Outcome none = run_bench({});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.errors, testing::HasSubstr("no benchmark is named"));
  const Outcome unknown = run_bench({"cpy"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.errors, testing::HasSubstr("did you mean copy?"));
  const Outcome flag = run_bench({"copy", "--repetition", "3"});
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.errors, testing::HasSubstr("did you mean --repetitions?"));
  for (const char* const seconds : {"0", "-1"}) {
    const Outcome outcome = run_bench({"kernel", "--seconds", seconds});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.errors, testing::HasSubstr("give more than 0"));
  }
}

TEST(BenchCommand, RefusesWhatMeansNothingOnTheHost) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"kernel", "--size", "1GiB"},
                                             {"step", "--size", "1GiB"},
                                             {"overlap", "--size", "1GiB"},
                                             {"simulator", "--size", "1GiB"},
                                             {"io", "--threads", "2"},
                                             {"copy", "--threads", "2"},
                                             {"copy", "--seconds", "2"},
                                             {"overlap", "--seconds", "2"},
                                             {"optimizer", "--tokens", "512"}}) {
    const Outcome outcome = run_bench(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr("bench " + arguments[0] + ": " + arguments[1] +
                                                   " has no effect here"));
  }
}

// All benchmarks accept the same flags.
TEST(BenchCommand, SaysWhereADirectoryIsNotUsed) {
  const TemporaryDirectory directory;
  for (const char* const kind : {"copy", "collective"}) {
    const Outcome outcome = run_bench({kind, "--small", "--nvme", directory.path()});
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr("this benchmark uses no drives"));
  }
}

TEST(BenchCommand, CollectivesAreNamedByTheirSizes) {
  for (const char* const size : {"1", "3", "1025"}) {
    const Outcome outcome = run_bench({"collective", "--small", "--size", size});
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr("not a multiple of 1 KiB"));
  }
  for (const auto& [size, name] : std::vector<std::pair<std::string, std::string>>{
           {"1KiB", "1kib"}, {"1536KiB", "1536kib"}, {"2MiB", "2mib"}}) {
    EXPECT_THAT(names_of_results("collective", {"--size", size}),
                testing::Contains("thread_all_reduce_fp32_" + name));
  }
}

// The columns are those of nccl-tests: busbw is algbw times a factor of the collective.
TEST(BenchCommand, CollectivesHaveRatesOverSizes) {
  const std::vector<std::string> arguments = {"collective", "--small", "--sizes", "8:5KiB:8",
                                              "--threads",  "2",       "--only",  "*_fp32_*"};
  std::vector<std::string> as_json = arguments;
  as_json.emplace_back("--json");
  const Outcome outcome = run_bench(as_json);
  ASSERT_EQ(outcome.code, 0) << outcome;
  const json document = json::parse(outcome.output);
  EXPECT_EQ(document.at("options").at("sizes").at("factor"), 8);
  std::vector<std::string> of_all_reduce;
  for (const json& result : document.at("results")) {
    const std::string name = result.at("name");
    const auto detail = [&](const char* key) {
      return result.at("details").at(key).at("value").get<double>();
    };
    const bool is_all_reduce = name.starts_with("thread_all_reduce_");
    if (is_all_reduce) of_all_reduce.push_back(name);
    const bool is_whole = is_all_reduce || name.starts_with("thread_broadcast_");
    EXPECT_EQ(detail("bus_factor"), is_whole ? 1 : 0.5) << name;
    EXPECT_NEAR(detail("busbw"), detail("bus_factor") * detail("algbw"), 1e-9 * detail("busbw"));
    EXPECT_EQ(detail("size"), 4 * detail("count"));
  }
  EXPECT_THAT(of_all_reduce,
              testing::ElementsAre("thread_all_reduce_fp32_8b", "thread_all_reduce_fp32_64b",
                                   "thread_all_reduce_fp32_512b", "thread_all_reduce_fp32_4kib"));

  const Outcome table = run_bench(arguments);
  ASSERT_EQ(table.code, 0) << table;
  EXPECT_THAT(table.output,
              testing::HasSubstr("thread_reduce_scatter_fp32, n = 2 ranks: busbw = algbw x (n-1)/n "
                                 "= algbw x 0.500\n"));
  EXPECT_THAT(table.output, testing::ContainsRegex("\n +4096 +1024 +fp32 +sum +[0-9.e-]+ "));
  EXPECT_THAT(table.output, testing::Not(testing::HasSubstr("the limit is")));
}

TEST(BenchCommand, RefusesSizesThatAreNoRange) {
  for (const auto& [sizes, says] :
       std::vector<std::pair<std::string, std::string>>{{"8", "not FIRST:LAST"},
                                                        {"8:16:2:2", "not FIRST:LAST"},
                                                        {"64:8", "is below the first"},
                                                        {"8:1KiB:1", "--sizes"},
                                                        {":8", "--sizes"}}) {
    const Outcome outcome = run_bench({"collective", "--small", "--sizes", sizes});
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr(says));
  }
  const Outcome both = run_bench({"collective", "--size", "1KiB", "--sizes", "8:1KiB"});
  EXPECT_EQ(both.code, 2) << both;
  EXPECT_THAT(both.errors, testing::HasSubstr("--size and --sizes are both given"));
}

TEST(BenchCommand, RefusesWhatMeansNothingOnADevice) {
  struct Refused {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::vector<Refused> refused = {
      {{"io", "--device", "cuda"}, "bench io --device cuda: this benchmark measures the host"},
      {{"copy", "--device", "cuda:1", "--threads", "2"}, "--threads has no effect here"},
      {{"copy", "--device", "cuda", "--nvme", "."}, "--nvme has no effect here"},
      {{"kernel", "--device", "cuda", "--size", "1GiB"}, "--size has no effect here"},
      {{"step", "--device", "cuda", "--zero-stage", "1"}, "--zero-stage has no effect here"},
      {{"copy", "--device", "gpu"}, "one of auto, cpu, cuda"}};
  for (const Refused& one : refused) {
    const Outcome outcome = run_bench(one.arguments);
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr(one.says));
  }
}

TEST(BenchCommand, RefusesWhatAnotherBenchmarkHas) {
  struct Refused {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::vector<Refused> refused = {
      {{"io", "--zero-stage", "1"},
       "--zero-stage has no effect here; leave it out; it is a flag of bench "
       "step"},
      {{"step", "--tokens", "1024"}, "it is a flag of bench step --device cuda, bench overlap"},
      {{"overlap", "--small", "--tokens", "1024"}, "--tokens has no effect with --small"},
      {{"overlap", "--tokens", "1000"}, "use 1024"},
      {{"step", "--preset", "nano"}, "it is a flag of bench step --device cuda"},
      {{"copy", "--json", "--csv"}, "--json and --csv"}};
  for (const Refused& one : refused) {
    const Outcome outcome = run_bench(one.arguments);
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, testing::HasSubstr(one.says));
  }
}

// A GPU that is not there is reported as in a training.
TEST(BenchCommand, WithoutAGpuItSaysWhatIsMissing) {
  for (const char* const kind : {"copy", "kernel", "step"}) {
    const Outcome outcome = run_bench({kind, "--small", "--device", "cuda:1000"});
    EXPECT_EQ(outcome.code, 4) << outcome;
    EXPECT_THAT(outcome.errors, testing::AnyOf(testing::HasSubstr("built without CUDA"),
                                               testing::HasSubstr("GPU 1000"),
                                               testing::HasSubstr("cudaGetDeviceCount")));
  }
}

TEST(BenchCommand, HelpNamesEveryKind) {
  const Outcome help = run_bench({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* kind : {"io", "copy", "optimizer", "kernel", "step", "collective"}) {
    EXPECT_THAT(help.output, testing::HasSubstr("\n  " + std::string(kind) + " "));
  }
}

}  // namespace
}  // namespace terrace
