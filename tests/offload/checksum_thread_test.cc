#include "offload/checksum_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

namespace terrace {
namespace {

using ::testing::ElementsAre;

class Job final : public ChecksumJob {
 public:
  explicit Job(std::function<void()> body) : body_(std::move(body)) {}
  void take_checksum() noexcept override { body_(); }

 private:
  std::function<void()> body_;
};

TEST(ChecksumThread, ReadsGoFirstAndEachDirectionKeepsItsOrder) {
  std::vector<std::string> done;
  std::atomic<bool> started{false};
  std::atomic<bool> go{false};
  Job gate([&] {
    started = true;
    started.notify_one();
    go.wait(false);
  });
  std::deque<Job> jobs;
  for (const char* name : {"w1", "w2", "r1", "r2"}) {
    jobs.emplace_back([&done, name] { done.emplace_back(name); });
  }
  {
    ChecksumThread thread(4);
    thread.push_write(gate);
    started.wait(false);
    thread.push_write(jobs[0]);
    thread.push_write(jobs[1]);
    thread.push_read(jobs[2]);
    thread.push_read(jobs[3]);
    go = true;
    go.notify_one();
  }
  // The thread ended after all of the jobs.
  EXPECT_THAT(done, ElementsAre("r1", "r2", "w1", "w2"));
}

TEST(ChecksumThread, WhatIsPushedAfterAPauseIsDoneToo) {
  std::binary_semaphore done(0);
  Job job([&] { done.release(); });
  ChecksumThread thread(1);
  for (int i = 0; i < 100; ++i) {
    thread.push_read(job);
    done.acquire();
    thread.push_write(job);
    done.acquire();
  }
}

TEST(ChecksumThread, MoreThanItsCapacityIsStopped) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        std::atomic<bool> never{false};
        Job gate([&] { never.wait(false); });
        Job job([] {});
        ChecksumThread thread(2);
        thread.push_write(gate);
        for (int i = 0; i < 4; ++i) thread.push_read(job);
      },
      "count");
}

}  // namespace
}  // namespace terrace
