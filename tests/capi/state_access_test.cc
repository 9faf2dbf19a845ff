#include <cstring>
#include <limits>

#include "tests/capi/trained_session.h"

// State that a caller sets, and gradients that it looks at.
namespace terrace::test {
namespace {

terrace_error write_state(TrainedSession& session, std::int32_t tensor, const char* field,
                          std::vector<float> values, std::int64_t first = 0) {
  const terrace_buffer buffer =
      buffer_of(values.data(), static_cast<std::int64_t>(values.size()), TERRACE_DTYPE_FP32);
  return terrace_state_write(session.get(), tensor, field, first, &buffer);
}

std::int64_t updates_of(TrainedSession& session, std::int32_t tensor) {
  std::int64_t updates = -1;
  EXPECT_DONE(terrace_tensor_updates(session.get(), tensor, &updates));
  return updates;
}

const char* const kFields[][3] = {{"master", "exp_avg", "exp_avg_sq"},
                                  {"master", "exp_avg", nullptr},
                                  {"master", "momentum_buffer", nullptr}};

// State that is read from one session and written to another goes on with the same bits, wherever
// each session has it.
TEST(CapiStateAccess, WrittenStateGoesOnWithTheSameBits) {
  const TemporaryDirectory drive;
  TrainedSession first;
  for (int step = 1; step <= 2; ++step) first.step(step);
  TrainedSession second({.tier = TERRACE_TIER_NVME, .nvme = drive.path()});
  for (std::int32_t i = 0; i < std::ssize(test_tensors()); ++i) {
    for (const char* field : kFields[test_tensors()[static_cast<std::size_t>(i)].group]) {
      if (field == nullptr) continue;
      ASSERT_DONE(write_state(second, i, field, first.state(i, field)));
    }
    ASSERT_DONE(terrace_tensor_set_updates(second.get(), i, updates_of(first, i)));
    EXPECT_EQ(updates_of(second, i), 2);
  }
  EXPECT_EQ(second.parameters(), first.parameters());
  first.step(3);
  EXPECT_EQ(second.step(3).step, 3);
  EXPECT_EQ(second.parameters(), first.parameters());
  EXPECT_EQ(second.state(1, "exp_avg_sq"), first.state(1, "exp_avg_sq"));
}

// The part reaches over the end of a chunk; everything else stays.
TEST(CapiStateAccess, APartIsWritten) {
  TrainedSession session;
  session.step(1);
  std::vector<float> expected = session.state(1, "exp_avg");
  const std::vector<float> part(4000, 0.25F);
  constexpr std::int64_t kFirst = 1048576 - 1500;
  ASSERT_DONE(write_state(session, 1, "exp_avg", part, kFirst));
  std::ranges::copy(part, expected.begin() + kFirst);
  EXPECT_EQ(session.state(1, "exp_avg"), expected);
}

TEST(CapiStateAccess, WhatIsNotThereIsRefused) {
  TrainedSession session;
  const std::vector<float> before = session.state(2, "exp_avg");
  expect_error(write_state(session, 2, "exp_avg_sq", {1}), TERRACE_ERROR_ARGUMENT, "exp_avg_sq");
  expect_error(write_state(session, 2, "exp_avg", {1, 2}), TERRACE_ERROR_ARGUMENT, "norm");
  expect_error(write_state(session, 2, "exp_avg", {1}, -1), TERRACE_ERROR_ARGUMENT, "norm");
  expect_error(write_state(session, 99, "exp_avg", {1}), TERRACE_ERROR_ARGUMENT, "99");
  expect_error(terrace_tensor_set_updates(session.get(), 2, -1), TERRACE_ERROR_ARGUMENT, "-1");
  for (const std::int64_t updates :
       {(std::int64_t{1} << 53) + 1, std::numeric_limits<std::int64_t>::max()}) {
    expect_error(terrace_tensor_set_updates(session.get(), 2, updates), TERRACE_ERROR_ARGUMENT,
                 "updates");
  }
  EXPECT_EQ(session.state(2, "exp_avg"), before);
  session.step(1);  // the session has not failed
}

TEST(CapiStateAccess, GradientsAreShownAsTheyWereAdded) {
  TrainedSession session;
  terrace_buffer view = {};
  ASSERT_DONE(terrace_gradient_view(session.get(), 5, &view));
  EXPECT_EQ(view.data, nullptr);
  session.add_gradients(1);
  ASSERT_DONE(terrace_gradient_view(session.get(), 5, &view));
  ASSERT_EQ(view.element_count, 300);
  const std::vector<float> first = gradient_of(5, 1, 0);
  const std::vector<float> second = gradient_of(5, 1, 1);
  const auto* sum = static_cast<const float*>(view.data);
  for (std::size_t i = 0; i < first.size(); ++i) ASSERT_EQ(sum[i], first[i] + second[i]) << i;
  ASSERT_DONE(terrace_gradients_discard(session.get()));
  ASSERT_DONE(terrace_gradient_view(session.get(), 5, &view));
  EXPECT_EQ(view.data, nullptr);
}

}  // namespace
}  // namespace terrace::test
