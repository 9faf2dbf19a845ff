#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/capi/trained_session.h"

// Compares steps that begin before their gradients are complete with whole steps of the same
// gradients.
namespace terrace::test {
namespace {

constexpr int kArrivingSteps = 3;

terrace_step_options arriving_options() {
  terrace_step_options options = TrainedSession::step_options(0);
  options.flags = TERRACE_STEP_GRADIENTS_ARRIVE;
  return options;
}

terrace_step_result empty_result() {
  terrace_step_result result = {};
  result.struct_size = sizeof result;
  return result;
}

terrace_error add_gradient(TrainedSession& session, std::int32_t tensor, int step, int micro_batch,
                           float factor = 1) {
  std::vector<float> values = gradient_of(static_cast<std::size_t>(tensor), step, micro_batch);
  for (float& value : values) value *= factor;
  const terrace_buffer buffer =
      buffer_of(values.data(), static_cast<std::int64_t>(values.size()), TERRACE_DTYPE_FP32);
  return terrace_gradient_add(session.get(), tensor, &buffer);
}

std::int32_t tensor_count() { return static_cast<std::int32_t>(test_tensors().size()); }

// Adds one micro-batch before the step and one under it, the last tensors first. The last one to
// arrive is left for the end of the step to complete.
terrace_step_result arriving_step(TrainedSession& session, int step) {
  for (std::int32_t i = 0; i < tensor_count(); ++i) EXPECT_DONE(add_gradient(session, i, step, 0));
  const terrace_step_options options = arriving_options();
  EXPECT_DONE(terrace_step_begin(session.get(), &options));
  for (std::int32_t i = tensor_count(); i-- > 0;) {
    EXPECT_DONE(add_gradient(session, i, step, 1));
    if (i == 0) continue;
    EXPECT_DONE(terrace_gradient_complete(session.get(), i));
  }
  EXPECT_DONE(terrace_wait_parameter(session.get(), 3));
  terrace_step_result result = empty_result();
  EXPECT_DONE(terrace_step_end(session.get(), &result));
  return result;
}

terrace_step_result whole_step(TrainedSession& session, int step, std::int32_t without = -1) {
  session.add_gradients(step, without);
  terrace_step_options options = TrainedSession::step_options(0);
  options.flags = TERRACE_STEP_SKIP_MISSING;
  terrace_step_result result = empty_result();
  EXPECT_DONE(terrace_step(session.get(), &options, &result));
  return result;
}

void expect_equal(TrainedSession& a, TrainedSession& b) {
  EXPECT_EQ(a.parameters(), b.parameters());
  for (std::int32_t i = 0; i < tensor_count(); ++i) {
    const std::int32_t group = test_tensors()[static_cast<std::size_t>(i)].group;
    const char* const first = group == 2 ? "momentum_buffer" : "exp_avg";
    EXPECT_EQ(a.state(i, "master"), b.state(i, "master")) << i;
    EXPECT_EQ(a.state(i, first), b.state(i, first)) << i;
  }
}

TEST(CapiArrivingStep, HasTheBitsOfAWholeStep) {
  const TemporaryDirectory drive;
  TrainedSession whole;
  for (int step = 1; step <= kArrivingSteps; ++step) whole_step(whole, step);
  TrainedSession again;
  const terrace_step_result expected = whole_step(again, 1);
  for (const SessionChoice& choice :
       {SessionChoice(), SessionChoice{.threads = 1}, SessionChoice{.threads = 5},
        SessionChoice{.tier = TERRACE_TIER_NVME, .nvme = drive.path()},
        SessionChoice{.tier = TERRACE_TIER_AUTO, .nvme = drive.path(), .host_bytes = 38U << 20}}) {
    TrainedSession arriving(choice);
    ASSERT_DONE(arriving.prepared());
    for (int step = 1; step <= kArrivingSteps; ++step) {
      const terrace_step_result result = arriving_step(arriving, step);
      EXPECT_EQ(result.step, step);
      EXPECT_EQ(result.skipped_tensors, 0U);
      EXPECT_EQ(result.clip_coefficient, 1);
      if (step > 1) continue;
      EXPECT_EQ(result.gradient_norm, expected.gradient_norm);
    }
    expect_equal(arriving, whole);
  }
}

TEST(CapiArrivingStep, LeavesTensorsWithoutGradient) {
  TrainedSession whole;
  whole_step(whole, 1, 1);
  TrainedSession arriving;
  const terrace_step_options options = arriving_options();
  ASSERT_DONE(terrace_step_begin(arriving.get(), &options));
  for (const std::int32_t i : {5, 0, 4, 2, 3}) {
    EXPECT_DONE(add_gradient(arriving, i, 1, 0));
    EXPECT_DONE(add_gradient(arriving, i, 1, 1));
    EXPECT_DONE(terrace_gradient_complete(arriving.get(), i));
  }
  terrace_step_result result = empty_result();
  EXPECT_DONE(terrace_step_end(arriving.get(), &result));
  EXPECT_EQ(result.skipped_tensors, 1U);
  expect_equal(arriving, whole);
  std::int64_t updates = -1;
  EXPECT_DONE(terrace_tensor_updates(arriving.get(), 1, &updates));
  EXPECT_EQ(updates, 0);
}

// After the wait a reader sees the values that the step leaves, while other gradients still arrive.
TEST(CapiArrivingStep, ParametersAreReadWhileGradientsArrive) {
  TrainedSession whole;
  whole_step(whole, 1);
  TrainedSession arriving;
  const terrace_step_options options = arriving_options();
  ASSERT_DONE(terrace_step_begin(arriving.get(), &options));
  std::vector<std::thread> readers;
  for (std::int32_t i = tensor_count(); i-- > 0;) {
    EXPECT_DONE(add_gradient(arriving, i, 1, 0));
    EXPECT_DONE(add_gradient(arriving, i, 1, 1));
    EXPECT_DONE(terrace_gradient_complete(arriving.get(), i));
    readers.emplace_back([&, i] {
      EXPECT_DONE(terrace_wait_parameter(arriving.get(), i));
      const auto tensor = static_cast<std::size_t>(i);
      EXPECT_EQ(arriving.bytes(tensor), whole.bytes(tensor)) << i;
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_DONE(terrace_step_end(arriving.get(), nullptr));
}

TEST(CapiArrivingStep, CallsOutOfOrderAreRefused) {
  TrainedSession session;
  EXPECT_DONE(add_gradient(session, 5, 1, 0));
  expect_error(terrace_gradient_complete(session.get(), 5), TERRACE_ERROR_ORDER,
               "GRADIENTS_ARRIVE");
  terrace_step_options options = arriving_options();
  options.max_grad_norm = 1;
  expect_error(terrace_step_begin(session.get(), &options), TERRACE_ERROR_ARGUMENT,
               "max_grad_norm");
  options.max_grad_norm = 0;
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
  double norm = 0;
  expect_error(terrace_wait_norm(session.get(), &norm), TERRACE_ERROR_ORDER, "arrive");
  expect_error(terrace_wait_parameter(session.get(), 5), TERRACE_ERROR_ORDER, "plain");
  expect_error(terrace_gradient_complete(session.get(), 4), TERRACE_ERROR_MISSING_GRADIENT, "half");
  expect_error(terrace_gradient_complete(session.get(), 99), TERRACE_ERROR_ARGUMENT, "99");
  EXPECT_DONE(terrace_gradient_complete(session.get(), 5));
  expect_error(terrace_gradient_complete(session.get(), 5), TERRACE_ERROR_ORDER, "twice");
  expect_error(add_gradient(session, 5, 1, 1), TERRACE_ERROR_ORDER, "plain");
  expect_error(terrace_gradients_discard(session.get()), TERRACE_ERROR_ORDER, "under way");
  expect_error(terrace_step_begin(session.get(), &options), TERRACE_ERROR_ORDER, "under way");
  EXPECT_DONE(terrace_step_end(session.get(), nullptr));
  // A step that gets no gradient does not count.
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
  expect_error(terrace_step_end(session.get(), nullptr), TERRACE_ERROR_MISSING_GRADIENT, "step 2");
  std::int64_t steps = 0;
  EXPECT_DONE(terrace_step_count(session.get(), &steps));
  EXPECT_EQ(steps, 1);
  EXPECT_EQ(arriving_step(session, 2).step, 2);
}

TEST(CapiArrivingStep, AnInfiniteGradientBeforeAllUpdatesChangesNothing) {
  TrainedSession session;
  const std::vector<std::vector<std::byte>> before = session.parameters();
  const terrace_step_options options = arriving_options();
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
  EXPECT_DONE(add_gradient(session, 3, 1, 0, std::numeric_limits<float>::infinity()));
  EXPECT_DONE(terrace_gradient_complete(session.get(), 3));
  expect_error(terrace_step_end(session.get(), nullptr), TERRACE_ERROR_NOT_FINITE, "nothing was");
  EXPECT_EQ(session.parameters(), before);
  EXPECT_EQ(arriving_step(session, 1).step, 1);
}

TEST(CapiArrivingStep, AnInfiniteGradientAfterUpdatesNeedsSavedState) {
  const TemporaryDirectory kept;
  TrainedSession session;
  arriving_step(session, 1);
  ASSERT_DONE(terrace_save(session.get(), kept.path("state").c_str()));
  arriving_step(session, 2);
  const std::vector<std::vector<std::byte>> expected = session.parameters();

  ASSERT_DONE(terrace_load(session.get(), kept.path("state").c_str()));
  const terrace_step_options options = arriving_options();
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
  EXPECT_DONE(add_gradient(session, 5, 2, 0));
  EXPECT_DONE(terrace_gradient_complete(session.get(), 5));
  EXPECT_DONE(terrace_wait_parameter(session.get(), 5));
  EXPECT_DONE(add_gradient(session, 3, 2, 0, std::numeric_limits<float>::infinity()));
  expect_error(terrace_step_end(session.get(), nullptr), TERRACE_ERROR_NOT_FINITE, "head");
  expect_error(terrace_step_begin(session.get(), &options), TERRACE_ERROR_FAILED, "load");
  ASSERT_DONE(terrace_load(session.get(), kept.path("state").c_str()));
  arriving_step(session, 2);
  EXPECT_EQ(session.parameters(), expected);
}

TEST(CapiArrivingStep, AChangedParameterIsFoundBeforeAllUpdates) {
  TrainedSession session;
  arriving_step(session, 1);
  reinterpret_cast<Bf16*>(session.bytes(0).data())[7] = to_bf16_nearest_even(42);
  const std::vector<std::vector<std::byte>> before = session.parameters();
  const terrace_step_options options = arriving_options();
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
  for (const std::int32_t i : {5, 3, 0}) {
    EXPECT_DONE(add_gradient(session, i, 2, 0));
    EXPECT_DONE(terrace_gradient_complete(session.get(), i));
  }
  expect_error(terrace_step_end(session.get(), nullptr), TERRACE_ERROR_PARAMETER_CHANGED,
               "embedding");
  EXPECT_EQ(session.parameters(), before);
  EXPECT_DONE(terrace_parameter_adopt(session.get(), 0));
  // The gradients are kept.
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
  terrace_step_result result = empty_result();
  EXPECT_DONE(terrace_step_end(session.get(), &result));
  EXPECT_EQ(result.skipped_tensors, 3U);
}

TEST(CapiArrivingStep, DestroyEndsAStepThatIsOpen) {
  for (const bool is_complete : {false, true}) {
    TrainedSession session;
    const terrace_step_options options = arriving_options();
    ASSERT_DONE(terrace_step_begin(session.get(), &options));
    EXPECT_DONE(add_gradient(session, 1, 1, 0));
    if (!is_complete) continue;
    EXPECT_DONE(terrace_gradient_complete(session.get(), 1));
  }
}

TEST(CapiArrivingStep, SquareSumsMakeTheNorm) {
  TrainedSession session;
  double sum = -1;
  EXPECT_DONE(terrace_gradient_square_sum(session.get(), 0, &sum));
  EXPECT_EQ(sum, 0);
  session.add_gradients(1);
  double squares = 0;
  double exact = 0;
  for (std::int32_t i = 0; i < tensor_count(); ++i) {
    EXPECT_DONE(terrace_gradient_square_sum(session.get(), i, &sum));
    squares += sum;
    const auto tensor = static_cast<std::size_t>(i);
    std::vector<float> gradient = gradient_of(tensor, 1, 0);
    const std::vector<float> second = gradient_of(tensor, 1, 1);
    for (std::size_t e = 0; e < second.size(); ++e) {
      gradient[e] += second[e];
      exact += double{gradient[e]} * gradient[e];
    }
  }
  // Each of 3.2 million additions errs by 2^-53 of the sum at most.
  EXPECT_NEAR(squares, exact, exact * 3.2e6 * 0x1p-53);
  expect_error(terrace_gradient_square_sum(session.get(), 99, &sum), TERRACE_ERROR_ARGUMENT, "99");
  expect_error(terrace_gradient_square_sum(session.get(), 0, nullptr), TERRACE_ERROR_ARGUMENT,
               "sum");
}

}  // namespace
}  // namespace terrace::test
