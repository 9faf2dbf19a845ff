#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/config/train_config.h"
#include "runtime/config/train_flags.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using Arguments = std::vector<std::string>;

// Returns the flags that a run needs at least, and those that the test adds.
Arguments with(const Arguments& more) {
  Arguments all = {"--model", "nano", "--data", "text", "--max-steps", "100"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TrainOptions parse(const Arguments& more) { return parse_train_options(with(more)); }

std::string error_of(const Arguments& arguments) {
  try {
    parse_train_options(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

void expect_refused(const Arguments& more, const std::vector<std::string>& parts) {
  const std::string error = error_of(with(more));
  for (const std::string& part : parts) EXPECT_THAT(error, testing::HasSubstr(part));
}

TEST(TrainConfig, KeysThatDifferAreNamedWithBothValues) {
  const TrainOptions first = parse_train_options(with({"--seed", "1", "--threads", "2"}));
  const TrainOptions other = parse_train_options(with(
      {"--seed", "2", "--threads", "3", "--master-weights", "fp32", "--stop-after-step", "5"}));
  EXPECT_THAT(differing_keys(to_toml(first), other),
              testing::ElementsAre("seed 1 -> 2", "stop_after_step not set -> 5",
                                   "master_weights \"auto\" -> \"fp32\"", "threads 2 -> 3"));
  // Masters have the same bits in either form.
  EXPECT_THAT(changed_keys(to_toml(first), other), testing::ElementsAre("seed 1 -> 2"));
  EXPECT_THAT(differing_keys(to_toml(first), first), testing::IsEmpty());
}

// The rule is the same in transformers.
TEST(TrainConfig, MaxStepsWinsOverEpochs) {
  const TrainOptions both = parse_train_options(with({"--num-train-epochs", "2"}));
  EXPECT_EQ(both.batch.max_steps, 100);
}

// A flag that says the same thing in another way also replaces the file's value.
TEST(TrainConfig, AFlagWinsOverTheFilesAlternative) {
  const TemporaryDirectory directory;
  const std::string file = directory.write(
      "run.toml", "model = \"nano\"\ndata = \"text\"\nvalidation_fraction = 0.2\nmax_steps = 5\n");
  const TrainOptions data = parse_train_options({"--config", file, "--validation-data", "held"});
  EXPECT_EQ(data.data.validation_data, (std::vector<ValidationSet>{{"", {"held"}}}));
  const TrainOptions epochs = parse_train_options({"--config", file, "--num-train-epochs", "2"});
  EXPECT_EQ(epochs.batch.max_steps, 0);
  EXPECT_EQ(epochs.batch.num_train_epochs, 2.0);
  const std::string held = directory.write(
      "held.toml", "model = \"nano\"\ndata = \"text\"\nvalidation_data = \"held\"\n");
  const TrainOptions fraction =
      parse_train_options({"--config", held, "--validation-fraction", "0.3", "--max-steps", "5"});
  EXPECT_TRUE(fraction.data.validation_data.empty());
  EXPECT_EQ(fraction.data.validation_fraction, 0.3);
}

// A resumed run may have another mesh, so the file does not pin the options that follow from the
// mesh.
TEST(TrainConfig, SequenceParallelismIsWrittenOnlyWhereItIsNamed) {
  EXPECT_THAT(to_toml(parse({"--tensor-parallel", "2"})),
              testing::HasSubstr("# sequence_parallel is not set\n"));
  EXPECT_THAT(to_toml(parse({"--tensor-parallel", "2", "--sequence-parallel", "off"})),
              testing::HasSubstr("\nsequence_parallel = \"off\"\n"));
}

TEST(TrainConfig, NumbersThatFp32HasNotAreRefused) {
  expect_refused({"--adam-epsilon", "1e-60"},
                 {"--adam-epsilon 1e-60", "smaller than the smallest fp32 number"});
  expect_refused({"--learning-rate", "1e300"},
                 {"--learning-rate 1e300", "larger than the largest fp32 number"});
  expect_refused({"--weight-decay", "1e39"},
                 {"--weight-decay 1e39", "larger than the largest fp32 number"});
}

TEST(TrainConfig, DefaultsAreThoseOfTheInterface) {
  const TrainOptions options = parse({});
  EXPECT_EQ(options.model.model, "nano");
  EXPECT_EQ(options.model.init, InitChoice::kAuto);
  EXPECT_EQ(options.model.seed, 1234U);
  EXPECT_EQ(options.data.data, Arguments{"text"});
  EXPECT_EQ(options.data.data_format, "auto");
  EXPECT_EQ(options.data.validation_fraction, 0.01);
  EXPECT_EQ(options.data.tokenizer, "auto");
  EXPECT_EQ(options.batch.micro_batch_size, 1);
  EXPECT_EQ(options.batch.gradient_accumulation_steps, 1);
  EXPECT_EQ(options.optimizer.learning_rate, 3e-4);
  EXPECT_FALSE(options.optimizer.min_learning_rate);
  EXPECT_EQ(options.optimizer.numbers().values.at(1), 0.95);
  EXPECT_EQ(options.precision, Precision::kBf16);
  EXPECT_FALSE(options.tiers.device_memory);
  EXPECT_FALSE(options.tiers.threads);
  EXPECT_FALSE(options.step.zero_stage);
  EXPECT_EQ(options.ranks.local_ranks, 1);
  EXPECT_EQ(options.ranks.collective_timeout_s, 600);
  EXPECT_EQ(options.ranks.hierarchical_collectives, HierarchicalUse::kAuto);
  EXPECT_EQ(options.run.resume, "none");
  EXPECT_EQ(options.run.log_every, 1);
  EXPECT_FALSE(options.run.dry_run);
}

// Returns every flag of the table, with a value other than its default where another one is built.
Arguments every_flag() {
  Arguments flags = {"--model",     "gpt2-124m",
                     "--init",      "random",
                     "--seed",      "18446744073709551615",
                     "--data",      "one",
                     "two\"\\\n",   "--data-format",
                     "raw-u16",     "--validation-data",
                     "three",       "--tokenizer",
                     "bytes",       "--sequence-length",
                     "5e2",         "--micro-batch-size",
                     "2",           "--gradient-accumulation-steps",
                     "3",           "--max-steps",
                     "10_000",      "--stop-after-step",
                     "7",           "--optimizer",
                     "adamw",       "--learning-rate",
                     "1e-3",        "--min-learning-rate",
                     "0",           "--warmup-steps",
                     "4",           "--lr-scheduler-type",
                     "linear",      "--weight-decay",
                     "0.2",         "--adam-beta1",
                     "0.8",         "--adam-beta2",
                     "0.85",        "--adam-epsilon",
                     "1e-6",        "--max-grad-norm",
                     "0",           "--optimizer-state-dtype",
                     "fp32",        "--master-weights",
                     "fp32",        "--gradient-dtype",
                     "fp32",        "--precision",
                     "fp32",        "--device",
                     "cpu",         "--device-memory",
                     "512MiB",      "--host-memory",
                     "1.5GB",       "--nvme",
                     "/a:4GiB",     "--nvme",
                     "/b",          "--place-parameters",
                     "device",      "--place-gradients",
                     "host",        "--place-optimizer",
                     "nvme",        "--place-activations",
                     "nvme",        "--io-engine",
                     "posix",       "--lookahead",
                     "0",           "--threads",
                     "5",           "--recompute",
                     "full",        "--micro-batch-order",
                     "layer-major", "--experts-per-group",
                     "16",          "--zero-stage",
                     "3",           "--gradient-reduction",
                     "step"};
  std::istringstream of_run(
      "--run-dir run --eval-every 6 --log-every 8 --checkpoint-every 9 --keep-last 2 --resume "
      "auto --progress off --trace-steps 2:4 --record-hashes --live 8427 --overwrite-later "
      "--eval-samples 7 --save-dtype float16 --keep-best --early-stopping-patience 3 "
      "--ignore-config-keys mup rope_scaling.x --dry-run --router-aux-loss-coef 0.01 "
      "--router-z-loss-coef 0 --json --stage-speeds 1 0.5 --hierarchical-collectives off "
      "--zero-partition hsdp --island-ranks 2 --gradient-noise-scale --tensor-parallel 2 "
      "--sequence-parallel off --pipeline-parallel 2 --pipeline-schedule gpipe --virtual-stages 1 "
      "--local-ranks 4 --collective-timeout 12.5 --gradient-wire-dtype int8 "
      "--parameter-wire-dtype int8 --error-feedback on --place-gradient-errors nvme");
  for (std::string word; of_run >> word;) flags.push_back(word);
  return flags;
}

TEST(TrainConfig, TheIntervalOfCheckpointsIsAutomaticUnlessItIsANumber) {
  const auto interval = [](const Arguments& more) { return parse(more).run.checkpoint_every; };
  EXPECT_EQ(interval({}), (SaveInterval{.is_automatic = true, .steps = 0}));
  EXPECT_EQ(interval({"--checkpoint-every", "auto"}), interval({}));
  EXPECT_EQ(interval({"--checkpoint-every", "auto:40"}), (SaveInterval{true, 40}));
  EXPECT_EQ(interval({"--checkpoint-every", "0"}), (SaveInterval{false, 0}));
  for (const char* value : {"auto", "auto:40", "0", "7"}) {
    const TrainOptions options = parse({"--checkpoint-every", value});
    const TemporaryDirectory directory;
    const std::string file = directory.write("run.toml", to_toml(options));
    EXPECT_EQ(parse_train_options({"--config", file}).run.checkpoint_every,
              options.run.checkpoint_every)
        << value;
  }
  for (const char* wrong : {"auto:", "auto:0", "auto:-1", "auto:x", "-1", "often"}) {
    expect_refused({"--checkpoint-every", wrong}, {"--checkpoint-every"});
  }
}

TEST(TrainConfig, EveryFlagSetsItsOption) {
  const TrainOptions options = parse_train_options(every_flag());
  EXPECT_EQ(options.model.model, "gpt2-124m");
  EXPECT_EQ(options.model.init, InitChoice::kRandom);
  EXPECT_EQ(options.model.seed, 18446744073709551615U);
  EXPECT_EQ(options.model.ignored_config_keys, (Arguments{"mup", "rope_scaling.x"}));
  EXPECT_EQ(options.model.router_aux_loss_coef, 0.01);
  EXPECT_EQ(options.model.router_z_loss_coef, 0.0);
  EXPECT_EQ(options.data.data, (Arguments{"one", "two\"\\\n"}));
  EXPECT_EQ(options.data.data_format, "raw-u16");
  EXPECT_EQ(options.data.validation_data, (std::vector<ValidationSet>{{"", {"three"}}}));
  EXPECT_EQ(options.batch.sequence_length, 500);
  EXPECT_EQ(options.batch.micro_batch_size, 2);
  EXPECT_EQ(options.batch.gradient_accumulation_steps, 3);
  EXPECT_EQ(options.batch.max_steps, 10'000);
  EXPECT_EQ(options.batch.stop_after_step, 7);
  EXPECT_EQ(options.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(options.optimizer.min_learning_rate, 0.0);
  EXPECT_EQ(options.optimizer.warmup_steps, 4);
  EXPECT_EQ(options.optimizer.lr_scheduler_type, LrSchedulerType::kLinear);
  EXPECT_EQ(options.optimizer.weight_decay, 0.2);
  EXPECT_EQ(options.optimizer.numbers().values.at(0), 0.8);
  EXPECT_EQ(options.optimizer.numbers().values.at(1), 0.85);
  EXPECT_EQ(options.optimizer.numbers().values.at(2), 1e-6);
  EXPECT_EQ(options.optimizer.max_grad_norm, 0.0);
  EXPECT_EQ(options.precision, Precision::kFp32);
}

TEST(TrainConfig, EveryTierAndRunFlagSetsItsOption) {
  const TrainOptions options = parse_train_options(every_flag());
  EXPECT_EQ(options.tiers.device_memory, 512 * kMiB);
  EXPECT_EQ(options.tiers.host_memory, 1'500'000'000U);
  ASSERT_EQ(options.tiers.nvme.size(), 2U);
  EXPECT_EQ(options.tiers.nvme[0].path, "/a");
  EXPECT_EQ(options.tiers.nvme[0].budget_bytes, 4 * kGiB);
  EXPECT_EQ(options.tiers.nvme[1].path, "/b");
  EXPECT_FALSE(options.tiers.nvme[1].budget_bytes);
  EXPECT_EQ(options.tiers.places[StateClass::kParameters], Placement::kDevice);
  EXPECT_EQ(options.tiers.places[StateClass::kGradients], Placement::kHost);
  EXPECT_EQ(options.tiers.places[StateClass::kOptimizer], Placement::kNvme);
  EXPECT_EQ(options.tiers.places[StateClass::kActivations], Placement::kNvme);
  EXPECT_EQ(options.tiers.places[StateClass::kErrors], Placement::kNvme);
  EXPECT_EQ(options.tiers.io_engine, IoEngineKind::kPosix);
  EXPECT_EQ(options.tiers.lookahead, 0);
  EXPECT_EQ(options.tiers.threads, 5);
  EXPECT_EQ(options.step.recompute, RecomputeChoice::kFull);
  EXPECT_EQ(options.step.micro_batch_order, OrderChoice::kLayerMajor);
  EXPECT_EQ(options.step.experts_per_group, 16);
  EXPECT_EQ(options.step.zero_stage, 3);
  EXPECT_EQ(options.step.zero_partition, ZeroPartition::kHsdp);
  EXPECT_EQ(options.step.island_ranks, 2);
  EXPECT_EQ(options.step.gradient_wire, WireForm::kInt8);
  EXPECT_EQ(options.step.error_feedback, true);
  EXPECT_TRUE(options.batch.measures_gradient_noise);
  EXPECT_EQ(options.step.tensor_parallel, 2);
  EXPECT_EQ(options.step.sequence_parallel, false);
  EXPECT_EQ(options.step.pipeline_parallel, 2);
  EXPECT_EQ(options.step.pipeline_schedule, PipelineSchedule::kGpipe);
  EXPECT_EQ(options.step.virtual_stages, 1);
  EXPECT_EQ(options.step.stage_speeds, (std::vector<double>{1, 0.5}));
  EXPECT_EQ(options.ranks.local_ranks, 4);
  EXPECT_EQ(options.ranks.collective_timeout_s, 12.5);
  EXPECT_EQ(options.ranks.hierarchical_collectives, HierarchicalUse::kOff);
  EXPECT_EQ(options.run.run_dir, "run");
  EXPECT_EQ(options.run.eval_every, 6);
  EXPECT_EQ(options.run.eval_samples, 7);
  EXPECT_TRUE(options.run.overwrite_later);
  EXPECT_EQ(options.run.live_port, 8427);
  EXPECT_EQ(options.run.log_every, 8);
  EXPECT_EQ(options.run.checkpoint_every, (SaveInterval{.is_automatic = false, .steps = 9}));
  EXPECT_EQ(options.run.keep_last, 2);
  EXPECT_TRUE(options.run.keep_best);
  EXPECT_EQ(options.run.early_stopping_patience, 3);
  EXPECT_EQ(options.run.resume, "auto");
  EXPECT_EQ(options.run.save_dtype, SaveType::kFp16);
  EXPECT_EQ(options.run.progress, ProgressChoice::kOff);
  ASSERT_TRUE(options.run.trace_steps);
  EXPECT_EQ(options.run.trace_steps->first, 2);
  EXPECT_EQ(options.run.trace_steps->last, 4);
  EXPECT_TRUE(options.run.dry_run);
  EXPECT_TRUE(options.run.json);
}

// No flag is parsed and dropped: the text of a configuration differs from the default's in the line
// of every flag whose option can differ.
TEST(TrainConfig, EveryFlagIsInTheEffectiveConfiguration) {
  const std::string text = to_toml(parse_train_options(every_flag()));
  const Arguments arguments = every_flag();
  for (const TrainFlag& flag : train_flags()) {
    std::string key(flag.spec.name);
    std::replace(key.begin(), key.end(), '-', '_');
    const bool given = std::find(arguments.begin(), arguments.end(),
                                 "--" + std::string(flag.spec.name)) != arguments.end();
    EXPECT_THAT(text, testing::HasSubstr(given ? "\n" + key + " = " : "\n# " + key + " is not set"))
        << key;
  }
}

TEST(TrainConfig, EffectiveConfigurationReadsBackToTheSameOptions) {
  const TemporaryDirectory directory;
  const Arguments few = {"--model", "nano", "--data", "a:b", "--num-train-epochs", "0.1"};
  for (const Arguments& arguments : {every_flag(), with({}), few}) {
    const std::string text = to_toml(parse_train_options(arguments));
    const std::string file = directory.write("config.toml", text);
    EXPECT_EQ(to_toml(parse_train_options({"--config", file})), text);
  }
  const TrainOptions all = parse_train_options(
      {"--config", directory.write("all.toml", to_toml(parse_train_options(every_flag())))});
  EXPECT_EQ(all.model.seed, 18446744073709551615U);
  EXPECT_EQ(all.data.data, (Arguments{"one", "two\"\\\n"}));
  EXPECT_EQ(all.tiers.host_memory, 1'500'000'000U);
  EXPECT_EQ(all.tiers.nvme.at(0).budget_bytes, 4 * kGiB);
}

TEST(TrainConfig, FlagsWinOverTheFile) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("run.toml",
                                           "model = \"gpt2-xl\"\n"
                                           "data = \"one\"\n"
                                           "max_steps = 1_000\n"
                                           "seed = 7\n"
                                           "learning_rate = 1\n"
                                           "gradient_accumulation_steps = 5e0\n"
                                           "nvme = [\"/x:1GiB\"]\n"
                                           "dry_run = true\n");
  const TrainOptions options =
      parse_train_options({"--config", file, "--model", "nano", "--nvme", "/y"});
  EXPECT_EQ(options.model.model, "nano");
  EXPECT_EQ(options.data.data, Arguments{"one"});
  EXPECT_EQ(options.batch.max_steps, 1000);
  EXPECT_EQ(options.model.seed, 7U);
  EXPECT_EQ(options.optimizer.learning_rate, 1.0);
  EXPECT_EQ(options.batch.gradient_accumulation_steps, 5);
  ASSERT_EQ(options.tiers.nvme.size(), 1U);
  EXPECT_EQ(options.tiers.nvme[0].path, "/y");
  EXPECT_TRUE(options.run.dry_run);
}

// A file that a run has written contains the settings of that run's optimizer.
TEST(TrainConfig, AnotherOptimizerTakesNoSettingsFromTheFile) {
  const TemporaryDirectory directory;
  const std::string file =
      directory.write("run.toml", to_toml(parse_train_options(with({"--adam-beta1", "0.7"}))));
  const TrainOptions options = parse_train_options({"--config", file, "--optimizer", "sgd"});
  EXPECT_EQ(options.optimizer.rule->name, "sgd");
  EXPECT_EQ(options.optimizer.numbers().values.at(0), 0.9);
  const TrainOptions same = parse_train_options({"--config", file});
  EXPECT_EQ(same.optimizer.numbers().values.at(0), 0.7);
  const std::string mixed =
      directory.write("mixed.toml", "optimizer = \"lion\"\nadam_beta1 = 0.7\n");
  expect_refused({"--config", mixed}, {"adam_beta1", "lion"});
}

TEST(TrainConfig, AFlagOf0TakesBackWhatTheFileSays) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("run.toml",
                                           "model = \"nano\"\n"
                                           "data = \"one\"\n"
                                           "max_steps = 9\n"
                                           "stop_after_step = 4\n");
  const TrainOptions to_the_last =
      parse_train_options({"--config", file, "--stop-after-step", "0"});
  EXPECT_EQ(to_the_last.batch.max_steps, 9);
  EXPECT_FALSE(to_the_last.batch.stop_after_step.has_value());
  const TrainOptions passes =
      parse_train_options({"--config", file, "--max-steps", "0", "--num-train-epochs", "2"});
  EXPECT_EQ(passes.batch.num_train_epochs, 2.0);
  const std::string passes_file = directory.write("passes.toml", to_toml(passes));
  const TrainOptions steps =
      parse_train_options({"--config", passes_file, "--max-steps", "5", "--num-train-epochs", "0"});
  EXPECT_EQ(steps.batch.max_steps, 5);
  EXPECT_FALSE(steps.batch.num_train_epochs.has_value());
}

TEST(TrainConfig, FilesAreRefusedByKey) {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    expect_refused({"--config", directory.write("run.toml", text)}, parts);
  };
  refused("learning_rat = 1", {"run.toml", "unknown key learning_rat", "learning_rate?"});
  refused("max-step = 1", {"unknown key max-step", "max_steps"});
  refused("[optimizer]\nlearning_rate = 1", {"run.toml", "wrong kind"});
  refused("[model_options]\nseed = 1", {"model_options is a table"});
  refused("seed = [1, 2]", {"run.toml: seed", "one value"});
  refused("nvme = []", {"run.toml", "nvme"});
  refused("nvme = [[1]]", {"run.toml", "nvme"});
  refused("seed = true", {"run.toml: seed on", "whole number"});
  refused("precision = \"fp23\"", {"run.toml: precision fp23", "fp32"});
  refused("seed = \nmodel", {"run.toml, line 1"});
  refused("optimizer = \"muon\"", {"run.toml: optimizer muon is not built yet"});
  expect_refused({"--config", directory.path("none.toml")}, {"none.toml", "No such file"});
}

TEST(TrainConfig, UnknownFlagsSuggestTheNearest) {
  expect_refused({"--learning-rat", "1"}, {"--learning-rat:", "did you mean --learning-rate?"});
  expect_refused({"--max_step=4"}, {"--max_step:", "--max-steps?"});
  expect_refused({"--nvm", "/x"}, {"--nvm:", "--nvme?"});
  expect_refused({"-x"}, {"-x"});
}

TEST(TrainConfig, StrayAndMissingAndDoubleValuesAreRefused) {
  expect_refused({"--seed", "1", "2"}, {"'2' belongs to no flag"});
  expect_refused({"--dry-run", "yes"}, {"'yes' belongs to no flag"});
  expect_refused({"--seed"}, {"--seed"});
  expect_refused({"--trainable", "--seed", "1"}, {"--trainable has no value", "--seed"});
  expect_refused({"--seed", "--trainable=lm_head"}, {"--seed has no value"});
  EXPECT_EQ(error_of(with({"--trainable=--seed"})), "no error");  // the model has yet to say
  expect_refused({"--seed", "1", "--seed", "2"}, {"--seed"});
  expect_refused({"--nvme", "/a", "/b"}, {"'/b' belongs to no flag"});
  expect_refused({"--nvme", "/a", "--nvme", "/a:1GiB"}, {"--nvme", "twice"});
}

TEST(TrainConfig, NumbersAreChecked) {
  for (const char* text : {"1.5", "x", "", "1_", "_1", "1__0", "9e18", "0x10", "-1", " 1"}) {
    EXPECT_THAT(error_of(with({"--seed=" + std::string(text)})), testing::HasSubstr("--seed"))
        << text;
  }
  expect_refused({"--micro-batch-size", "0"}, {"--micro-batch-size 0", "at least 1"});
  expect_refused({"--micro-batch-size", "-2"}, {"--micro-batch-size -2", "at least 1"});
  expect_refused({"--log-every", "0"}, {"--log-every 0"});
  expect_refused({"--learning-rate", "-1"}, {"--learning-rate -1"});
  expect_refused({"--learning-rate", "nan"}, {"--learning-rate nan"});
  expect_refused({"--learning-rate", "inf"}, {"--learning-rate inf"});
  expect_refused({"--adam-beta1", "1"}, {"--adam-beta1 1", "less than 1"});
  expect_refused({"--adam-epsilon", "0"}, {"--adam-epsilon 0", "more than 0"});
  for (const char* range : {"3", "0:4", "5:4", "1:", ":2", "1:2:3", "a:b"}) {
    expect_refused({"--trace-steps", range}, {"is not a range of steps", "FIRST:LAST"});
  }
  expect_refused({"--validation-fraction", "1"}, {"--validation-fraction 1"});
  expect_refused({"--zero-stage", "4"}, {"--zero-stage 4", "at most 3"});
  expect_refused({"--threads", "0"}, {"--threads 0"});
  expect_refused({"--experts-per-group", "0"}, {"--experts-per-group 0"});
  expect_refused({"--router-aux-loss-coef", "-1"}, {"--router-aux-loss-coef -1"});
  expect_refused({"--router-z-loss-coef", "-1"}, {"--router-z-loss-coef -1"});
  expect_refused({"--lookahead", "-1"}, {"--lookahead -1"});
  expect_refused({"--host-memory", "0"}, {"--host-memory 0"});
  expect_refused({"--host-memory", "4GBB"}, {"--host-memory 4GBB", "not a size"});
  expect_refused({"--host-memory", "-4GiB"}, {"--host-memory -4GiB"});
  expect_refused({"--nvme", "/a:4GBB"}, {"--nvme 4GBB", "not a size"});
  expect_refused({"--nvme", ":4GiB"}, {"--nvme :4GiB", "no directory"});
  expect_refused({"--run-dir", ""}, {"--run-dir", "empty"});
}

TEST(TrainConfig, ColonsInDirectoriesAreKept) {
  EXPECT_EQ(parse({"--nvme", "/a:b"}).tiers.nvme.at(0).path, "/a:b");
  EXPECT_EQ(parse({"--nvme", "/a:4/b"}).tiers.nvme.at(0).path, "/a:4/b");
  const NvmeDirectory both = parse({"--nvme", "/a:b:4KB"}).tiers.nvme.at(0);
  EXPECT_EQ(both.path, "/a:b");
  EXPECT_EQ(both.budget_bytes, 4000U);
}

TEST(TrainConfig, ChoicesSuggestTheNearest) {
  expect_refused({"--init", "randm"}, {"--init randm", "did you mean random?"});
  expect_refused({"--precision", "bf61"}, {"--precision bf61", "bf16"});
  expect_refused({"--place-gradients", "nvm"}, {"--place-gradients nvm", "nvme?"});
  expect_refused({"--optimizer", "adam"}, {"--optimizer adam", "adamw?"});
  expect_refused({"--device", "cpus"}, {"--device cpus", "cpu?"});
  expect_refused({"--data-format", "txt"}, {"--data-format txt", "text?"});
}

TEST(TrainConfig, DropoutIsAProbabilityThatLeavesSomething) {
  const auto dropout_of = [](const std::string& text) {
    return parse({"--lora-rank", "4", "--lora-dropout", text}).model.lora.dropout;
  };
  EXPECT_EQ(dropout_of("0"), 0.0);
  EXPECT_EQ(dropout_of("0.05"), 0.05);
  EXPECT_EQ(dropout_of("0.99"), 0.99);
  EXPECT_EQ(parse({"--lora-rank", "4"}).model.lora.dropout, std::nullopt);
  for (const std::string text : {"1", "0.991", "-0.1"}) {
    expect_refused({"--lora-rank", "4", "--lora-dropout", text},
                   {"--lora-dropout " + text, "give a number from 0 to 0.99"});
  }
}

TEST(TrainConfig, AnOptimizerThatIsNotBuiltSaysSoByFlagAndValue) {
  expect_refused({"--optimizer", "muon"}, {"--optimizer muon is not built yet"});
}

TEST(TrainConfig, Fp16IsForGpusAndHasWholeMasters) {
  const TrainOptions options = parse({"--precision", "fp16", "--device", "cuda"});
  EXPECT_EQ(options.precision, Precision::kFp16);
  for (const std::string device : {"auto", "cpu"}) {
    const Arguments flags = {"--precision", "fp16", "--device", device};
    expect_refused(flags, {"--precision fp16", "GPUs only"});
  }
  expect_refused({"--precision", "fp16", "--device", "cuda", "--master-weights", "split"},
                 {"--master-weights split with --precision fp16"});
}

TEST(TrainConfig, DevicesAreReadAndShown) {
  struct Case {
    const char* text;
    DeviceChoice choice;
    const char* shown;
  };
  const std::vector<Case> cases = {{"auto", {DeviceKind::kAuto, {}}, "auto"},
                                   {"cpu", {DeviceKind::kCpu, {}}, "cpu"},
                                   {"cuda", {DeviceKind::kCuda, {}}, "cuda"},
                                   {"cuda:0", {DeviceKind::kCuda, 0}, "cuda:0"},
                                   {"cuda:3", {DeviceKind::kCuda, 3}, "cuda:3"}};
  for (const Case& one : cases) {
    const TrainOptions options = parse({"--device", one.text});
    EXPECT_EQ(options.tiers.device, one.choice) << one.text;
    EXPECT_THAT(to_toml(options),
                testing::HasSubstr("device = \"" + std::string(one.shown) + "\""));
  }
  EXPECT_EQ(parse({}).tiers.device, DeviceChoice{});
  for (const char* wrong : {"cuda:", "cuda:x", "cuda:-1", "cuda:5000"}) {
    expect_refused({"--device", wrong}, {"--device"});
  }
  // A GPU has its own memory even without --device-memory.
  EXPECT_EQ(parse({"--device", "cuda", "--place-parameters", "device"})
                .tiers.places[StateClass::kParameters],
            Placement::kDevice);
}

TEST(TrainConfig, ValuesThatMeanWhatIsBuiltAreAccepted) {
  const std::string plain = to_toml(parse({}));
  EXPECT_EQ(to_toml(parse({"--optimizer",
                           "adamw",
                           "--optimizer-state-dtype",
                           "fp32",
                           "--master-weights",
                           "auto",
                           "--gradient-dtype",
                           "fp32",
                           "--device",
                           "auto",
                           "--gradient-reduction",
                           "step",
                           "--tensor-parallel",
                           "1",
                           "--pipeline-parallel",
                           "1",
                           "--local-ranks",
                           "1",
                           "--threads",
                           "auto",
                           "--lookahead",
                           "auto",
                           "--tokenizer",
                           "auto"})),
            plain);
  for (const char* stage : {"0", "1", "2", "3"}) {
    EXPECT_EQ(std::to_string(*parse({"--zero-stage", stage}).step.zero_stage), stage);
  }
}

TEST(TrainConfig, MissingAndContradictoryOptionsAreRefused) {
  EXPECT_THAT(error_of({"--data", "x", "--max-steps", "1"}), testing::HasSubstr("--model"));
  EXPECT_THAT(error_of({"--model", "nano", "--max-steps", "1"}), testing::HasSubstr("--data"));
  expect_refused({"--stop-after-step", "101"}, {"--stop-after-step 101"});
  expect_refused({"--warmup-steps", "101"}, {"--warmup-steps 101", "--max-steps 100"});
  expect_refused({"--min-learning-rate", "1"}, {"--min-learning-rate 1", "--learning-rate"});
  expect_refused({"--place-parameters", "device"},
                 {"--place-parameters device", "--device-memory"});
  expect_refused({"--place-activations", "nvme"}, {"--place-activations nvme", "--nvme"});
  expect_refused({"--resume", "auto"}, {"--resume auto", "--run-dir"});
  expect_refused({"--json"}, {"--json", "--dry-run"});
  expect_refused({"--validation-data", "y", "--validation-fraction", "0.1"},
                 {"--validation-data", "--validation-fraction"});
  expect_refused({"--trace-steps", "101:102"}, {"--trace-steps 101:102", "last step, 100"});
  expect_refused({"--validation-fraction", "0", "--eval-every", "5"}, {"--eval-every 5"});
  expect_refused({"--sequence-parallel", "on"}, {"--sequence-parallel on", "--tensor-parallel"});
}

TEST(TrainConfig, HelpHasEveryFlagUnderItsGroup) {
  const std::string help = train_help();
  constexpr const char* kNames =
      "model init seed router-aux-loss-coef router-z-loss-coef trainable data data-format "
      "validation-data validation-fraction tokenizer "
      "sequence-length micro-batch-size gradient-accumulation-steps accumulation-schedule "
      "gradient-noise-scale max-steps num-train-epochs stop-after-step optimizer learning-rate "
      "min-learning-rate warmup-steps lr-scheduler-type weight-decay adam-beta1 adam-beta2 "
      "adam-epsilon max-grad-norm optimizer-state-dtype master-weights gradient-dtype precision "
      "gradient-wire-dtype parameter-wire-dtype error-feedback place-gradient-errors "
      "device device-memory host-memory nvme place-parameters place-gradients place-optimizer "
      "place-activations io-engine lookahead threads recompute micro-batch-order "
      "experts-per-group zero-stage zero-partition island-ranks gradient-reduction "
      "tensor-parallel sequence-parallel pipeline-parallel pipeline-schedule virtual-stages "
      "stage-speeds local-ranks collective-timeout rank-shares hierarchical-collectives run-dir "
      "eval-every log-every checkpoint-every keep-last resume progress trace-steps "
      "record-hashes live dry-run json config help";
  std::istringstream names(kNames);
  for (std::string name; names >> name;) {
    EXPECT_THAT(help, testing::ContainsRegex("--" + std::string(name) + "[ \n]")) << name;
  }
  std::size_t last = 0;
  for (const char* group : {"Model:", "Tuning:", "Data:", "Batch:", "Optimizer:", "Precision:",
                            "Device and tiers:", "Step program:", "Ranks:", "Run:"}) {
    const std::size_t at = help.find("\n" + std::string(group) + "\n");
    ASSERT_NE(at, std::string::npos) << group;
    EXPECT_LT(last, at) << group;
    last = at;
  }
}

}  // namespace
}  // namespace terrace
