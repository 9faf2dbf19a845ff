#include "runtime/step/lane_executor.h"

#include <fmt/format.h>

#include <atomic>

#include "base/check.h"
#include "runtime/step/lane_threads.h"
#include "runtime/step/op_issuer.h"

namespace terrace {

class LaneExecutor::Impl {
 public:
  Impl(const Program& program, ExecutorMemory memory, const LaneServices& services)
      : issuer_(program, std::move(memory), services) {
    try {
      for (std::size_t l = 0; l < kLaneCount; ++l) {
        const Lane lane = static_cast<Lane>(l);
        if (issuer_.lane_ops(lane).empty()) continue;
        threads_.start(fmt::format("lane {}", name_of(lane)), [this, lane] { serve(lane); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Impl() {
    while (in_flight() > 0) issuer_.wait_for(++retired_);
    stop();
  }

  void start(Part part, const RunInput& input) {
    TERRACE_CHECK_LT(in_flight(), 2);
    ++started_;
    issuer_.begin(started_, part, input);
    published_.advance(started_);
  }

  const RunReport& retire() {
    TERRACE_CHECK_LT(0, in_flight());
    ++retired_;
    issuer_.wait_for(retired_);
    return issuer_.retire(retired_);
  }

  void rethrow_failure() const { issuer_.rethrow_failure(); }

  int in_flight() const { return static_cast<int>(started_ - retired_); }

 private:
  void serve(Lane lane) {
    for (std::int64_t number = 1;; ++number) {
      published_.wait_for(number);
      if (stopping_.load()) return;
      for (const OpId op : issuer_.lane_ops(lane)) issuer_.issue(op, number);
    }
  }

  void stop() {
    stopping_.store(true);
    published_.advance(started_ + 1);
    threads_.join();
  }

  OpIssuer issuer_;
  Progress published_;  // the last run started
  std::atomic<bool> stopping_{false};

  // Owned by the caller's thread.
  std::int64_t started_ = 0;
  std::int64_t retired_ = 0;

  LaneThreads threads_;
};

LaneExecutor::LaneExecutor(const Program& program, ExecutorMemory memory,
                           const LaneServices& services)
    : impl_(std::make_unique<Impl>(program, std::move(memory), services)) {}

LaneExecutor::~LaneExecutor() = default;

void LaneExecutor::start(Part part, const RunInput& input) { impl_->start(part, input); }

const RunReport& LaneExecutor::retire() { return impl_->retire(); }

void LaneExecutor::rethrow_failure() const { impl_->rethrow_failure(); }

int LaneExecutor::runs_in_flight() const { return impl_->in_flight(); }

}  // namespace terrace
