#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <span>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/listed_file.h"
#include "runtime/session/parameter_session.h"
#include "runtime/session/session_error.h"
#include "runtime/session/unit_session.h"
#include "tests/runtime/temporary_directory.h"

// A drive that fails under a session. Every waiting thread gets the error, and nothing hangs.
namespace terrace {
namespace {

// Refuses all reads after a certain number of them.
class FailingReads final : public SystemFaults {
 public:
  SystemFault fate_of(const SystemCall& call) noexcept override {
    if (call.kind != SystemCall::Kind::kRead || left_-- > 0) return SystemFault::none(call);
    return {.asked_bytes = 0, .shown = -EIO};
  }
  void allow(int reads) { left_ = reads; }

 private:
  std::atomic<int> left_ = 1 << 30;
};

TEST(UnitFaults, AFailingDriveEndsEveryWait) {
  constexpr std::int32_t kUnits = 6;
  for (int reads = 0; reads < 40; reads += 3) {
    const TemporaryDirectory drive;
    FailingReads faults;
    UnitSessionOptions options;
    options.threads = 1;
    options.homes.fill(Tier::kNvme);
    options.nvme.directories = {{drive.path(), {}}};
    options.nvme.faults = &faults;
    options.micro_batches = 1;
    options.rule = "sgd";
    UnitSession session(std::move(options), std::make_unique<SilentLog>());
    for (std::int32_t u = 0; u < kUnits; ++u) {
      session.add_unit({.name = std::to_string(u), .elements = 4096});
    }
    session.prepare();
    session.fill(0, [](StateField, std::int32_t, std::int64_t, std::span<float> out) {
      std::ranges::fill(out, 0.0F);
    });
    faults.allow(reads);
    const auto compute = [&](UnitPass pass, std::int32_t u) {
      const AcquiredUnit unit = session.acquire({pass, u, 0});
      if (unit.gradient != nullptr) std::fill_n(unit.gradient, 4096, 1.0F);
      session.release(u);
    };
    const auto train = [&] {
      for (int step = 0; step < 50; ++step) {
        session.begin_step(0.1);
        for (std::int32_t u = 0; u < kUnits; ++u) compute(UnitPass::kForward, u);
        for (std::int32_t u = kUnits; u-- > 0;) compute(UnitPass::kBackward, u);
        session.end_step();
      }
    };
    EXPECT_THROW(train(), IoError) << reads;
    try {
      session.begin_step(0.1);
      ADD_FAILURE() << "goes on after " << reads;
    } catch (const SessionError& error) {
      EXPECT_EQ(error.problem(), SessionProblem::kFailed) << error.what();
    }
  }
}

// A session whose updates fail halfway goes on from saved state, with the bits that it had.
TEST(SessionFaults, AFailedSessionGoesOnFromSavedState) {
  constexpr std::int64_t kElements = 3 * StateHome::kChunkElements;
  const TemporaryDirectory drive;
  const TemporaryDirectory kept;
  FailingReads faults;
  SessionOptions options;
  options.threads = 2;
  options.tier = StateTier::kNvme;
  options.nvme.directories = {{drive.path(), {}}};
  options.nvme.faults = &faults;
  ParameterSession session(std::move(options), std::make_unique<SilentLog>());
  session.add_group("adamw", {}, 0.1);
  std::vector<float> parameter(kElements, 1.0F);
  std::vector<float> gradient(kElements, 0.5F);
  session.add_tensor({.name = "weight",
                      .dtype = DType::kF32,
                      .data = reinterpret_cast<std::byte*>(parameter.data()),
                      .shape = {kElements},
                      .elements = kElements});
  session.prepare();
  const auto step = [&] {
    session.add_gradient(0, view(std::span(gradient)));
    session.begin_step({.learning_rates = {0.1}});
    return session.end_step();
  };
  step();
  session.save(kept.path("state"));
  step();
  const std::vector<float> expected = parameter;
  session.load(kept.path("state"));
  faults.allow(9);
  EXPECT_THROW(
      {
        for (int i = 0; i < 20; ++i) step();
      },
      IoError);
  EXPECT_THROW(step(), SessionError);
  faults.allow(1 << 30);
  session.load(kept.path("state"));
  EXPECT_EQ(session.steps(), 1);
  step();
  EXPECT_EQ(parameter, expected);
}

// A prepared session of one small tensor on the host.
struct SmallSession {
  SmallSession() {
    session.add_group("sgd", {}, 0);
    session.add_tensor({.name = "weight",
                        .dtype = DType::kF32,
                        .data = reinterpret_cast<std::byte*>(parameter.data()),
                        .shape = {std::ssize(parameter)},
                        .elements = std::ssize(parameter)});
    session.prepare();
  }
  void begin_step(float gradient) {
    std::vector<float> gradients(parameter.size(), gradient);
    session.add_gradient(0, view(std::span(gradients)));
    session.begin_step({.learning_rates = {0.1}});
  }

  std::vector<float> parameter = std::vector<float>(100, 1.0F);
  ParameterSession session = ParameterSession({.threads = 1}, std::make_unique<SilentLog>());
};

// A thread that waits for a step gets that step's error, however soon it is ended and another step
// is begun.
TEST(SessionFaults, AFailedStepIsToldToAllWhoWaitForIt) {
  SmallSession small;
  UpdateThread& updates = small.session.updates_for(0);
  for (int round = 0; round < 200; ++round) {
    small.begin_step(std::numeric_limits<float>::infinity());
    const UpdateThread::SharedProgress step = updates.step_under_way();
    std::atomic<int> told = 0;
    std::vector<std::thread> waiting;
    for (int i = 0; i < 4; ++i) {
      waiting.emplace_back([&, i] {
        try {
          if (i % 2 == 0) updates.wait_for(step, 0);
          if (i % 2 == 1) updates.wait_for_norm(step);
        } catch (const NotFinite&) {
          ++told;
        }
      });
    }
    EXPECT_THROW(small.session.end_step(), NotFinite);
    EXPECT_EQ(updates.step_under_way(), nullptr);
    small.begin_step(1.0F);
    for (std::thread& thread : waiting) thread.join();
    ASSERT_EQ(told, 4) << round;
    updates.wait_for(0);
    EXPECT_EQ(small.session.end_step().step, round + 1);
  }
}

// Returns the JSON of a saved state with other numbers of one step, and a checksum that fits.
std::string with_numbers(std::string state, const std::string& step, const std::string& updates) {
  std::erase_if(state, [](char c) { return c == ' ' || c == '\n'; });
  state.replace(state.find("\"step\":1,"), 9, "\"step\":" + step + ",");
  state.replace(state.find("\"updates\":1}"), 12, "\"updates\":" + updates + "}");
  const std::size_t checksum = state.find(",\"xxh3\":", state.find("\"tensors\""));
  state.replace(checksum, std::string::npos, "}");
  const std::string hash = to_hex(hash_bytes(std::as_bytes(std::span(state))));
  return state.substr(0, checksum) + ",\"xxh3\":\"" + hash + "\"}";
}

TEST(SessionFaults, StepsThatCannotBeAreRefused) {
  const TemporaryDirectory kept;
  SmallSession small;
  small.begin_step(1.0F);
  small.session.end_step();
  small.session.save(kept.path("state"));
  const std::string path = kept.path("state/terrace_state.json");
  const std::string saved = read_whole_file(system_files(), path);
  const auto refusal_of = [&](const std::string& step, const std::string& updates) {
    write_durable_file(path, with_numbers(saved, step, updates));
    try {
      small.session.load(kept.path("state"));
    } catch (const CorruptData& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  for (const char* const number : {"1.5", "1e+300", "18446744073709551615"}) {
    EXPECT_NE(refusal_of(number, "1").find("not a whole number"), std::string::npos) << number;
    EXPECT_NE(refusal_of("1", number).find("not a whole number"), std::string::npos) << number;
  }
  EXPECT_NE(refusal_of("9007199254740993", "1").find("are impossible"), std::string::npos);
  EXPECT_NE(refusal_of("-1", "-1").find("are impossible"), std::string::npos);
  EXPECT_NE(refusal_of("1", "2").find("are impossible"), std::string::npos);
  EXPECT_EQ(refusal_of("3", "2"), "none");
  EXPECT_EQ(small.session.steps(), 3);
  EXPECT_EQ(small.session.updates_of(0), 2);
}

}  // namespace
}  // namespace terrace
