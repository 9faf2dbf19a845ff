#include "runtime/step/lane_threads.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>

#include "base/error.h"
#include "memory/cpu/cpu_device.h"
#include "runtime/step/lane_executor.h"
#include "tests/runtime/hand_made_program.h"

namespace terrace {
namespace {

// While it lives, every new thread asks for a stack larger than the address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    ::pthread_attr_init(&huge);
    EXPECT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 48), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&huge), 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    EXPECT_EQ(::pthread_setattr_default_np(&before_), 0);
    ::pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

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
  EXPECT_THROW(LaneExecutor(program, {{}, host, {}}, *device, nullptr, bodies, clock),
               EnvironmentError);
}

}  // namespace
}  // namespace terrace
