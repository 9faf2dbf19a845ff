#include <functional>
#include <thread>

#include "tests/capi/resident_memory.h"
#include "tests/capi/trained_session.h"

// Sessions that give their memory back for a while.
namespace terrace::test {
namespace {

// Too little to have everything on the host: it holds a window for the drives and a part of the
// state.
constexpr std::uint64_t kTightBytes = 40 << 20;

std::int64_t host_bytes(terrace_session* session) {
  return host_bytes_of([&](char* text, std::uint64_t capacity, std::uint64_t* size) {
    return terrace_ledger_json(session, text, capacity, size);
  });
}

void expect_same_state(TrainedSession& paused, TrainedSession& other) {
  EXPECT_EQ(paused.parameters(), other.parameters());
  EXPECT_EQ(paused.state(1, "exp_avg_sq"), other.state(1, "exp_avg_sq"));
  EXPECT_EQ(paused.state(1, "master"), other.state(1, "master"));
}

void expect_same_end(TrainedSession& paused, TrainedSession& other) {
  for (int step = 2; step <= 3; ++step) {
    EXPECT_EQ(paused.step(step).gradient_norm, other.step(step).gradient_norm);
  }
  expect_same_state(paused, other);
}

TEST(CapiPause, GivesMemoryBackAndGoesOnWithTheSameBits) {
  const TemporaryDirectory drive;
  TrainedSession same;
  std::vector<double> norms;
  for (int step = 1; step <= 3; ++step) norms.push_back(same.step(step).gradient_norm);
  for (const std::int32_t engine : {TERRACE_IO_AUTO, TERRACE_IO_POSIX}) {
    // The budget of the last choice leaves a part of the state on the host.
    for (const SessionChoice& choice :
         {SessionChoice{.engine = engine},
          SessionChoice{.tier = TERRACE_TIER_NVME, .nvme = drive.path(), .engine = engine},
          SessionChoice{.tier = TERRACE_TIER_AUTO,
                        .nvme = drive.path(),
                        .host_bytes = kTightBytes,
                        .engine = engine}}) {
      TrainedSession session(choice);
      ASSERT_EQ(session.prepared(), TERRACE_OK);
      session.step(1);
      const std::int64_t held = host_bytes(session.get());
      const std::int64_t before = resident_bytes();
      ASSERT_DONE(
          terrace_pause(session.get(), choice.nvme.empty() ? drive.path().c_str() : nullptr));
      expect_given_back(before, held);
      ASSERT_DONE(terrace_resume(session.get()));
      for (std::size_t step = 2; step <= 3; ++step) {
        EXPECT_EQ(session.step(static_cast<int>(step)).gradient_norm, norms[step - 1]);
      }
      expect_same_state(session, same);
    }
  }
}

TEST(CapiPause, KeepsGradientsThatWereAdded) {
  const TemporaryDirectory drive;
  TrainedSession session;
  TrainedSession other;
  session.add_gradients(1, 2);
  other.add_gradients(1, 2);
  ASSERT_DONE(terrace_pause(session.get(), drive.path().c_str()));
  ASSERT_DONE(terrace_resume(session.get()));
  terrace_step_options options = TrainedSession::step_options();
  options.flags = TERRACE_STEP_SKIP_MISSING;
  for (TrainedSession* each : {&session, &other}) {
    ASSERT_DONE(terrace_step(each->get(), &options, nullptr));
  }
  EXPECT_EQ(session.parameters(), other.parameters());
}

TEST(CapiPause, RefusesEveryOtherCall) {
  const TemporaryDirectory drive;
  TrainedSession session;
  session.step(1);
  expect_error(terrace_resume(session.get()), TERRACE_ERROR_ORDER, "not paused");
  session.add_gradients(2);
  const terrace_step_options options = TrainedSession::step_options();
  ASSERT_DONE(terrace_step_begin(session.get(), &options));
  expect_error(terrace_pause(session.get(), drive.path().c_str()), TERRACE_ERROR_ORDER,
               "terrace_step_end()");
  ASSERT_DONE(terrace_step_end(session.get(), nullptr));
  ASSERT_DONE(terrace_pause(session.get(), drive.path().c_str()));

  terrace_session* const own = session.get();
  float value = 1;
  std::int32_t number = 0;
  std::int64_t count = 1;
  double norm = 0;
  std::uint64_t size = 0;
  terrace_buffer buffer = buffer_of(&value, 1, TERRACE_DTYPE_FP32);
  terrace_tensor_options tensor = tensor_options("late", buffer);
  tensor.shape = &count;
  const std::vector<std::function<terrace_error()>> calls = {
      [&] { return add_group(own, "sgd", 0); },
      [&] { return terrace_tensor_add(own, 0, &tensor, &number); },
      [&] { return terrace_session_prepare(own); },
      [&] { return terrace_gradient_add(own, 2, &buffer); },
      [&] { return terrace_gradient_borrow(own, 2, &buffer, &number); },
      [&] { return terrace_gradient_view(own, 2, &buffer); },
      [&] { return terrace_gradients_discard(own); },
      [&] { return terrace_step(own, &options, nullptr); },
      [&] { return terrace_step_begin(own, &options); },
      [&] { return terrace_wait_parameter(own, 0); },
      [&] { return terrace_wait_norm(own, &norm); },
      [&] { return terrace_step_end(own, nullptr); },
      [&] { return terrace_step_count(own, &count); },
      [&] { return terrace_parameter_adopt(own, 0); },
      [&] { return terrace_state_read(own, 2, "master", 0, &buffer); },
      [&] { return terrace_state_write(own, 2, "master", 0, &buffer); },
      [&] { return terrace_tensor_updates(own, 0, &count); },
      [&] { return terrace_tensor_set_updates(own, 0, 1); },
      [&] { return terrace_save(own, drive.path().c_str()); },
      [&] { return terrace_load(own, drive.path().c_str()); },
      [&] { return terrace_pause(own, drive.path().c_str()); },
      [&] { return terrace_ledger_json(own, nullptr, 0, &size); },
      [&] { return terrace_metrics_json(own, nullptr, 0, &size); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    expect_error(calls[i](), TERRACE_ERROR_ORDER, "terrace_resume()");
  }
  std::thread([&] { EXPECT_DONE(terrace_resume(own)); }).join();
  session.step(3);
}

TEST(CapiPause, LosesNothingWhereThereIsNoRoom) {
  const TemporaryDirectory drive;
  TrainedSession other;
  other.step(1);
  TrainedSession session;
  session.step(1);
  expect_error(terrace_pause(session.get(), nullptr), TERRACE_ERROR_ARGUMENT, "name a directory");
  const std::string none = drive.path() + "/none";
  expect_error(terrace_pause(session.get(), none.c_str()), TERRACE_ERROR_ENVIRONMENT, "none");
  expect_same_end(session, other);
}

// The budget of the session's own directory includes what is there already.
TEST(CapiPause, HeedsTheBudgetOfTheDirectories) {
  const TemporaryDirectory drive;
  TrainedSession other;
  other.step(1);
  SessionChoice choice = {
      .tier = TERRACE_TIER_AUTO, .nvme = drive.path(), .host_bytes = kTightBytes};
  choice.nvme_budget = 34 << 20;
  TrainedSession session(choice);
  ASSERT_EQ(session.prepared(), TERRACE_OK) << terrace_last_error();
  session.step(1);
  session.add_gradients(2);
  expect_error(terrace_pause(session.get(), nullptr), TERRACE_ERROR_DOES_NOT_FIT, drive.path());
  ASSERT_DONE(terrace_gradients_discard(session.get()));
  expect_same_end(session, other);
}

TEST(CapiPause, APausedSessionIsDestroyed) {
  const TemporaryDirectory drive;
  TrainedSession session;
  ASSERT_DONE(terrace_pause(session.get(), drive.path().c_str()));
}

}  // namespace
}  // namespace terrace::test
