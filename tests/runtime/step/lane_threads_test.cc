#include "runtime/step/lane_threads.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "memory/cpu/cpu_device.h"
#include "runtime/step/lane_executor.h"
#include "tests/memory/no_more_threads.h"
#include "tests/runtime/step/hand_made_program.h"

namespace terrace {
namespace {

TEST(LaneThreads, AThreadThatDoesNotStartIsNamedAndTheOthersAreJoined) {
  std::atomic<bool> stop{false};
  LaneThreads threads;
  threads.start("lane read", [&stop] { stop.wait(false); });
  {
    const NoMoreThreads refused;
    try {
      threads.start("lane write", [] {});
      ADD_FAILURE() << "the thread was started";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("lane write"), std::string::npos) << error.what();
    }
  }
  stop.store(true);
  stop.notify_all();
  threads.join();
}

class NoBodies final : public OpBodies {
 public:
  void run(const Op& /*op*/, const RunInput& /*input*/, NativeStream /*stream*/) override {}
};

TEST(LaneThreads, AnExecutorWithoutThreadsIsAnError) {
  HandMadeProgram made;
  const BufferId buffer = made.own_buffer();
  made.op(Lane::kUpdate, 1, {}, {buffer});
  const Program program = made.finish();
  std::vector<std::byte> host(HandMadeProgram::kSize);
  const auto device = make_cpu_device(4096);
  NoBodies bodies;
  const SystemClock clock;
  const NoMoreThreads refused;
  EXPECT_THROW(LaneExecutor(program, {{}, host, {}}, {*device, nullptr, bodies, clock}),
               EnvironmentError);
}

}  // namespace
}  // namespace terrace
