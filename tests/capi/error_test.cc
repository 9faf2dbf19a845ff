#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/capi/trained_session.h"

// Mistakes of a caller, and failures of its machine. Each ends in an error, and a session that can
// go on goes on.
namespace terrace::test {
namespace {

// A session with a group, and ten fp32 values for a tensor.
class CapiError : public ::testing::Test {
 protected:
  CapiError() {
    EXPECT_DONE(make_session({}, &session_));
    EXPECT_DONE(add_group(session_, "adamw", 0));
    options_ = tensor_options("weight", buffer_of(values_.data(), 10, TERRACE_DTYPE_FP32));
    options_.shape = &count_;
  }
  ~CapiError() override { EXPECT_DONE(terrace_session_destroy(session_)); }
  CapiError(const CapiError&) = delete;
  CapiError& operator=(const CapiError&) = delete;

  terrace_error add() { return terrace_tensor_add(session_, 0, &options_, &tensor_); }
  void prepare() {
    ASSERT_DONE(add());
    ASSERT_DONE(terrace_session_prepare(session_));
  }
  terrace_error add_gradient(std::int32_t dtype = TERRACE_DTYPE_FP32, std::int64_t count = 10) {
    const terrace_buffer buffer = buffer_of(gradient_.data(), count, dtype);
    return terrace_gradient_add(session_, tensor_, &buffer);
  }
  terrace_error step() { return terrace_step(session_, &step_, nullptr); }

  std::array<float, 20> values_ = {};
  std::array<float, 10> gradient_ = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  std::int64_t count_ = 10;
  double rate_ = 0.1;
  terrace_step_options step_ = {sizeof step_, 0, &rate_, 1, 0, 0, 0, 0};
  terrace_session* session_ = nullptr;
  terrace_tensor_options options_ = {};
  std::int32_t tensor_ = -1;
};

TEST(CapiLibrary, SaysWhatItIs) {
  EXPECT_EQ(terrace_abi_version(), TERRACE_ABI_VERSION);
  EXPECT_GT(std::strlen(terrace_version()), 4U);
  EXPECT_STREQ(terrace_error_name(TERRACE_ERROR_FULL_DISK), "TERRACE_ERROR_FULL_DISK");
  EXPECT_STREQ(terrace_error_name(12345), "unknown");
}

TEST(CapiLibrary, RefusesOptions) {
  terrace_session* session = nullptr;
  terrace_session_options options = {};
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "struct_size");
  options.struct_size = sizeof options;
  expect_error(terrace_session_create(&options, nullptr), TERRACE_ERROR_ARGUMENT, "session");
  expect_error(terrace_session_create(nullptr, &session), TERRACE_ERROR_ARGUMENT, "NULL");
  options.threads = -1;
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "threads");
  // The limit is the same as on the command line: --threads.
  const auto processors = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  options.threads = std::max(256, 4 * processors) + 1;
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "threads");
  options.threads = 0;
  options.state_tier = 7;
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "state_tier");
  options.state_tier = TERRACE_TIER_NVME;
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "directory");
  options.nvme_count = 1;
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "nvme");
  options.nvme_count = 0;
  options.state_tier = TERRACE_TIER_AUTO;
  options.io_engine = 9;
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "io_engine");
  options.io_engine = 0;
  options.reserved = 1;
  expect_error(terrace_session_create(&options, &session), TERRACE_ERROR_ARGUMENT, "reserved");
  EXPECT_EQ(session, nullptr);
  EXPECT_EQ(terrace_session_destroy(nullptr), TERRACE_OK);
  expect_error(terrace_session_prepare(nullptr), TERRACE_ERROR_ARGUMENT, "session");
}

// A struct of a newer header: fields that this library does not know are refused if they are set.
TEST(CapiLibrary, KnowsItsStructs) {
  struct Newer {
    terrace_session_options known;
    std::uint64_t more;
  };
  Newer newer = {};
  newer.known.struct_size = sizeof newer;
  terrace_session* session = nullptr;
  ASSERT_DONE(terrace_session_create(&newer.known, &session));
  EXPECT_DONE(terrace_session_destroy(session));
  newer.more = 1;
  expect_error(terrace_session_create(&newer.known, &session), TERRACE_ERROR_UNSUPPORTED, "newer");
}

TEST_F(CapiError, Groups) {
  expect_error(add_group(session_, "adam", 0), TERRACE_ERROR_ARGUMENT, "adamw");
  expect_error(add_group(session_, nullptr, 0), TERRACE_ERROR_ARGUMENT, "rule");
  expect_error(add_group(session_, "sgd", -1), TERRACE_ERROR_ARGUMENT, "weight decay");
  expect_error(add_group(session_, "sgd", 1e39), TERRACE_ERROR_ARGUMENT, "weight decay");
  const auto with = [&](const char* name, double value) {
    const terrace_hyperparameter one = {name, value};
    terrace_group_options options = {sizeof options, 1, "adamw", &one, 0};
    std::int32_t group = -1;
    return terrace_group_add(session_, &options, &group);
  };
  expect_error(with("beta1", 0.9), TERRACE_ERROR_ARGUMENT, "adam_beta1");
  expect_error(with(nullptr, 0.9), TERRACE_ERROR_ARGUMENT, "name");
  expect_error(with("adam_beta2", 1), TERRACE_ERROR_ARGUMENT, "less than 1");
  expect_error(with("adam_epsilon", 0), TERRACE_ERROR_ARGUMENT, "more than 0");
  expect_error(with("adam_epsilon", std::nan("")), TERRACE_ERROR_ARGUMENT, "adam_epsilon");
  EXPECT_DONE(with("adam_beta2", 0.999));
}

TEST_F(CapiError, Tensors) {
  expect_error(terrace_tensor_add(session_, 4, &options_, &tensor_), TERRACE_ERROR_ARGUMENT,
               "group 4");
  const terrace_tensor_options good = options_;
  options_.parameter.dtype = 12;
  expect_error(add(), TERRACE_ERROR_DTYPE, "weight");
  options_ = good;
  options_.parameter.device_type = TERRACE_DEVICE_CUDA;
  expect_error(add(), TERRACE_ERROR_ENVIRONMENT, "CUDA");
  options_ = good;
  options_.parameter.stream = &options_;
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "stream");
  options_ = good;
  options_.parameter.data = nullptr;
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "NULL");
  options_ = good;
  options_.parameter.data = reinterpret_cast<char*>(values_.data()) + 2;
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "aligned");
  options_ = good;
  options_.parameter.element_count = std::numeric_limits<std::int64_t>::max();
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "elements");
  // Other libraries describe an empty tensor in this way.
  options_.parameter.element_count = 0;
  options_.parameter.data = nullptr;
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "weight has no elements");
  options_ = good;
  count_ = 9;
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "shape");
  count_ = 10;
  options_.name = "";
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "name");
  options_.name = "\xff";
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "UTF-8");
  options_.name = "__metadata__";
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "__metadata__");
  options_ = good;
  options_.flags = 8;
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "flags");
  options_ = good;
  EXPECT_DONE(add());
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "two tensors are named weight");
  options_.name = "overlaps";
  options_.parameter.data = values_.data() + 5;
  expect_error(add(), TERRACE_ERROR_ARGUMENT, "share memory");
  options_.parameter.data = values_.data() + 10;
  EXPECT_DONE(add());
}

// A text that is too long ends with a whole character, wherever it is cut.
TEST_F(CapiError, ALongTextIsCutBetweenCharacters) {
  for (std::string name : {"", "a"}) {
    for (int i = 0; i < 3000; ++i) name += "\xc3\xa9";
    options_.name = name.c_str();
    options_.flags = 8;
    expect_error(add(), TERRACE_ERROR_ARGUMENT, "flags");
    const std::string text = terrace_last_error();
    EXPECT_GE(text.size(), 4094U);
    EXPECT_EQ(std::ranges::count(text, '\xc3'), std::ranges::count(text, '\xa9'));
  }
}

TEST_F(CapiError, CallsOutOfOrder) {
  expect_error(terrace_session_prepare(session_), TERRACE_ERROR_ORDER, "no tensor");
  expect_error(add_gradient(), TERRACE_ERROR_ORDER, "terrace_session_prepare");
  expect_error(step(), TERRACE_ERROR_ORDER, "terrace_session_prepare");
  expect_error(terrace_wait_parameter(session_, 0), TERRACE_ERROR_ORDER, "prepare");
  expect_error(terrace_save(session_, "/nowhere"), TERRACE_ERROR_ORDER, "prepare");
  std::uint64_t size = 0;
  expect_error(terrace_ledger_json(session_, nullptr, 0, &size), TERRACE_ERROR_ORDER, "prepare");
  prepare();
  expect_error(add(), TERRACE_ERROR_ORDER, "tensor");
  expect_error(add_group(session_, "sgd", 0), TERRACE_ERROR_ORDER, "group");
  expect_error(terrace_session_prepare(session_), TERRACE_ERROR_ORDER, "prepare");
  expect_error(terrace_step_end(session_, nullptr), TERRACE_ERROR_ORDER, "no step");
  double norm = 0;
  expect_error(terrace_wait_norm(session_, &norm), TERRACE_ERROR_ORDER, "no step");
  EXPECT_DONE(terrace_wait_parameter(session_, 0));
  expect_error(terrace_wait_parameter(session_, 1), TERRACE_ERROR_ARGUMENT, "tensor 1");
  expect_error(terrace_wait_parameter(session_, -1), TERRACE_ERROR_ARGUMENT, "tensor -1");

  ASSERT_DONE(add_gradient());
  ASSERT_DONE(terrace_step_begin(session_, &step_));
  expect_error(add_gradient(), TERRACE_ERROR_ORDER, "under way");
  expect_error(terrace_step_begin(session_, &step_), TERRACE_ERROR_ORDER, "under way");
  expect_error(terrace_load(session_, "/nowhere"), TERRACE_ERROR_ORDER, "under way");
  expect_error(terrace_save(session_, "/nowhere"), TERRACE_ERROR_ORDER, "under way");
  EXPECT_DONE(terrace_step_end(session_, nullptr));
}

TEST_F(CapiError, Gradients) {
  prepare();
  expect_error(add_gradient(77), TERRACE_ERROR_DTYPE, "dtype");
  expect_error(add_gradient(TERRACE_DTYPE_FP32, 9), TERRACE_ERROR_ARGUMENT, "has 10");
  expect_error(step(), TERRACE_ERROR_MISSING_GRADIENT, "weight");
  step_.flags = TERRACE_STEP_SKIP_MISSING;
  expect_error(step(), TERRACE_ERROR_MISSING_GRADIENT, "terrace_gradient_add");
  step_.flags = 0;
  ASSERT_DONE(add_gradient());
  ASSERT_DONE(terrace_gradients_discard(session_));
  expect_error(step(), TERRACE_ERROR_MISSING_GRADIENT, "weight");
  EXPECT_EQ(values_, (std::array<float, 20>{}));
}

TEST_F(CapiError, StepOptions) {
  prepare();
  ASSERT_DONE(add_gradient());
  const terrace_step_options good = step_;
  step_.learning_rate_count = 0;
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "learning rates");
  step_ = good;
  rate_ = -1;
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "learning rate");
  rate_ = 0.1;
  step_.max_grad_norm = std::numeric_limits<double>::infinity();
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "max_grad_norm");
  step_ = good;
  step_.gradient_scale = -1;
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "gradient_scale");
  step_ = good;
  for (const double norm : {-1.0, std::numeric_limits<double>::infinity()}) {
    step_.known_norm = norm;
    expect_error(step(), TERRACE_ERROR_ARGUMENT, "known_norm");
  }
  step_ = good;
  step_.known_norm = 1;
  step_.flags = TERRACE_STEP_GRADIENTS_ARRIVE;
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "known_norm");
  step_ = good;
  step_.flags = 4;
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "flags");
  step_ = good;
  // The value is finite, but not in fp32.
  rate_ = 1e39;
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "learning rate");
  rate_ = 0.1;
  step_.max_grad_norm = 1e39;
  expect_error(step(), TERRACE_ERROR_ARGUMENT, "max_grad_norm");
  step_ = good;
  for (const double scale : {1e39, 1e-60}) {
    step_.gradient_scale = scale;
    expect_error(step(), TERRACE_ERROR_ARGUMENT, "gradient_scale");
  }
  step_ = good;
  terrace_step_result result = {};
  expect_error(terrace_step(session_, &step_, &result), TERRACE_ERROR_ARGUMENT, "struct_size");
  EXPECT_DONE(step());
  EXPECT_LT(values_[0], 0);
}

TEST_F(CapiError, AGradientThatIsNotFinite) {
  prepare();
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    gradient_[3] = bad;
    ASSERT_DONE(add_gradient());
    expect_error(step(), TERRACE_ERROR_NOT_FINITE, "weight");
    EXPECT_EQ(values_, (std::array<float, 20>{}));
    expect_error(step(), TERRACE_ERROR_MISSING_GRADIENT, "weight");
  }
  gradient_[3] = 1;
  ASSERT_DONE(add_gradient());
  ASSERT_DONE(terrace_step_begin(session_, &step_));
  EXPECT_DONE(terrace_step_end(session_, nullptr));
  std::int64_t steps = 0;
  EXPECT_DONE(terrace_step_count(session_, &steps));
  EXPECT_EQ(steps, 1);
}

// The gradients and their scale each fit fp32, but their product does not.
TEST_F(CapiError, AScaledGradientThatIsNotFinite) {
  prepare();
  ASSERT_DONE(add_gradient());
  step_.gradient_scale = 1e38;
  expect_error(step(), TERRACE_ERROR_NOT_FINITE, "fp32");
  ASSERT_DONE(add_gradient());
  step_.gradient_scale = 1e-30;
  step_.max_grad_norm = 1e-50;
  expect_error(step(), TERRACE_ERROR_NOT_FINITE, "max_grad_norm");
  EXPECT_EQ(values_, (std::array<float, 20>{}));
}

// Every waiting thread gets the error, too.
TEST_F(CapiError, AFailedStepEndsEveryWait) {
  prepare();
  gradient_[3] = std::nanf("");
  ASSERT_DONE(add_gradient());
  ASSERT_DONE(terrace_step_begin(session_, &step_));
  double norm = 0;
  expect_error(terrace_wait_norm(session_, &norm), TERRACE_ERROR_NOT_FINITE, "weight");
  expect_error(terrace_wait_parameter(session_, tensor_), TERRACE_ERROR_NOT_FINITE, "weight");
  expect_error(terrace_step_end(session_, nullptr), TERRACE_ERROR_NOT_FINITE, "weight");
}

TEST(CapiFailure, AParameterThatSomebodyChanged) {
  TrainedSession session;
  session.step(1);
  const std::vector<std::byte> before = session.bytes(0);
  session.bytes(1)[2 * 1048576 * 2] ^= std::byte{1};
  session.add_gradients(2);
  const terrace_step_options options = TrainedSession::step_options();
  expect_error(terrace_step(session.get(), &options, nullptr), TERRACE_ERROR_PARAMETER_CHANGED,
               "wide");
  EXPECT_EQ(session.bytes(0), before);
  // The gradients are kept.
  EXPECT_DONE(terrace_parameter_adopt(session.get(), 1));
  EXPECT_DONE(terrace_step(session.get(), &options, nullptr));
  EXPECT_NE(session.bytes(0), before);
}

TEST(CapiFailure, BudgetsThatAreTooSmall) {
  const TemporaryDirectory drive;
  {
    const TrainedSession session({.host_bytes = 1 << 20});
    EXPECT_EQ(session.prepared(), TERRACE_ERROR_DOES_NOT_FIT);
    expect_error(terrace_session_prepare(session.get()), TERRACE_ERROR_ORDER, "another session");
  }
  {
    // If there is no room for the gradients, no drive helps.
    const TrainedSession session(
        {.tier = TERRACE_TIER_NVME, .nvme = drive.path(), .host_bytes = 1 << 20});
    EXPECT_EQ(session.prepared(), TERRACE_ERROR_DOES_NOT_FIT);
  }
  {
    const TrainedSession session({.tier = TERRACE_TIER_NVME, .nvme = drive.path("absent")});
    EXPECT_EQ(session.prepared(), TERRACE_ERROR_ENVIRONMENT);
    EXPECT_NE(std::string(terrace_last_error()).find("absent"), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(drive.path()));
}

TEST(CapiFailure, ADriveWithTooSmallABudget) {
  const TemporaryDirectory drive;
  const std::string path = drive.path();
  const terrace_nvme_directory directory = {path.c_str(), 1 << 20};
  terrace_session_options options = {};
  options.struct_size = sizeof options;
  options.state_tier = TERRACE_TIER_NVME;
  options.nvme = &directory;
  options.nvme_count = 1;
  terrace_session* session = nullptr;
  ASSERT_DONE(terrace_session_create(&options, &session));
  ASSERT_DONE(add_group(session, "adamw", 0));
  std::vector<float> values(1 << 20);
  const terrace_buffer parameter = buffer_of(values.data(), 1 << 20, TERRACE_DTYPE_FP32);
  terrace_tensor_options tensor = tensor_options("weight", parameter);
  tensor.shape = &parameter.element_count;
  std::int32_t number = -1;
  ASSERT_DONE(terrace_tensor_add(session, 0, &tensor, &number));
  expect_error(terrace_session_prepare(session), TERRACE_ERROR_DOES_NOT_FIT, "nvme");
  EXPECT_DONE(terrace_session_destroy(session));
}

// A child has none of the threads, so nothing of a session may be waited for there.
TEST(CapiFailure, AForkedChild) {
  TrainedSession session;
  session.step(1);
  const pid_t child = fork();
  if (child == 0) {
    const terrace_step_options options = TrainedSession::step_options();
    const bool refused = terrace_step(session.get(), &options, nullptr) == TERRACE_ERROR_FORKED &&
                         std::strstr(terrace_last_error(), "spawn") != nullptr &&
                         terrace_wait_parameter(session.get(), 0) == TERRACE_ERROR_FORKED &&
                         terrace_save(session.get(), "/tmp/never") == TERRACE_ERROR_FORKED &&
                         terrace_session_destroy(session.get()) == TERRACE_ERROR_FORKED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  session.step(2);
}

TEST(CapiReport, LedgerAndMetrics) {
  const TemporaryDirectory drive;
  TrainedSession session({.tier = TERRACE_TIER_NVME, .nvme = drive.path()});
  session.step(1);
  const auto text_of = [&](auto call) {
    std::uint64_t size = 0;
    EXPECT_DONE(call(session.get(), nullptr, 0, &size));
    std::string text(size, '?');
    expect_error(call(session.get(), text.data(), size - 1, &size), TERRACE_ERROR_ARGUMENT,
                 "capacity");
    EXPECT_DONE(call(session.get(), text.data(), size, &size));
    EXPECT_EQ(text.back(), '\0');
    return text;
  };
  const std::string ledger = text_of(terrace_ledger_json);
  EXPECT_NE(ledger.find("\"nvme\":{\"accounts\":{\"optimizer_state\":"), std::string::npos);
  EXPECT_NE(ledger.find("\"gradients\":"), std::string::npos) << ledger;
  const std::string metrics = text_of(terrace_metrics_json);
  EXPECT_NE(metrics.find("\"step\":1,"), std::string::npos) << metrics;
  EXPECT_EQ(metrics.find("\"nvme_read_bytes\":0,"), std::string::npos) << metrics;
}

using LogCallback = void (*)(std::int32_t level, const char* line, void* user);

// Makes a session, sets `session`, and prepares it, which writes to the log. `user` is handed to
// the callback.
void prepare_with_log(const TemporaryDirectory& drive, LogCallback log, void* user,
                      terrace_session*& session) {
  drive.write("terrace-4242-0123456789abcdef/lock", "");
  const std::string path = drive.path();
  const terrace_nvme_directory directory = {path.c_str(), 0};
  terrace_session_options options = {};
  options.struct_size = sizeof options;
  options.state_tier = TERRACE_TIER_NVME;
  options.nvme = &directory;
  options.nvme_count = 1;
  options.log_user = user;
  options.log = log;
  EXPECT_DONE(terrace_session_create(&options, &session));
  EXPECT_DONE(add_group(session, "sgd", 0));
  static float value = 1;
  const terrace_buffer parameter = buffer_of(&value, 1, TERRACE_DTYPE_FP32);
  terrace_tensor_options tensor = tensor_options("weight", parameter);
  tensor.shape = &parameter.element_count;
  std::int32_t number = -1;
  EXPECT_DONE(terrace_tensor_add(session, 0, &tensor, &number));
  EXPECT_DONE(terrace_session_prepare(session));
}

TEST(CapiReport, TheLogIsTold) {
  const TemporaryDirectory drive;
  std::string told;
  const auto log = [](std::int32_t level, const char* line, void* user) {
    *static_cast<std::string*>(user) += std::to_string(level) + line + "\n";
  };
  terrace_session* session = nullptr;
  prepare_with_log(drive, log, &told, session);
  EXPECT_NE(told.find("terrace-4242-0123456789abcdef"), std::string::npos) << told;
  EXPECT_DONE(terrace_session_destroy(session));
}

// Waits on another thread while terrace_session_prepare() is at work. A wait that had to wait for
// that call would never return.
TEST(CapiReport, WaitsRunBesideOtherCalls) {
  const TemporaryDirectory drive;
  struct Waits {
    terrace_session* session = nullptr;
    terrace_error parameter = TERRACE_OK;
    terrace_error norm = TERRACE_OK;
  };
  const auto log = [](std::int32_t, const char*, void* user) {
    auto& waits = *static_cast<Waits*>(user);
    std::thread([&waits] {
      double norm = 0;
      waits.parameter = terrace_wait_parameter(waits.session, 0);
      waits.norm = terrace_wait_norm(waits.session, &norm);
    }).join();
  };
  Waits waits;
  prepare_with_log(drive, log, &waits, waits.session);
  EXPECT_EQ(waits.parameter, TERRACE_ERROR_ORDER);
  EXPECT_EQ(waits.norm, TERRACE_ERROR_ORDER);
  EXPECT_DONE(terrace_session_destroy(waits.session));
}

}  // namespace
}  // namespace terrace::test
