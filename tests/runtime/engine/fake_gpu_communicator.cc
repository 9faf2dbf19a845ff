#include "tests/runtime/engine/fake_gpu_communicator.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "tests/runtime/engine/fake_gpu_kernels.h"

namespace terrace::test {

void KindsOfCalls::add(const CollectiveCall& call, const Communicator& communicator) {
  const std::string text = describe(call);
  const std::scoped_lock lock(mutex_);
  kinds_.insert(fmt::format("rank {}: {} on '{}'", communicator.rank(),
                            text.substr(0, text.find(" of ")), communicator.name()));
}

std::set<std::string> KindsOfCalls::all() const {
  const std::scoped_lock lock(mutex_);
  return kinds_;
}

namespace {

// The state that all communicators of a rank share. Thread-safe.
class FakeGpuCalls {
 public:
  FakeGpuCalls(int failing_call, KindsOfCalls* kinds) : calls_left_(failing_call), kinds_(kinds) {}

  void note(const CollectiveCall& call, const Communicator& communicator) const {
    if (kinds_ != nullptr) kinds_->add(call, communicator);
  }

  // Returns whether this call, on `communicator`, is the one to fail.
  bool fails(const std::string& what, Communicator& communicator) {
    const std::scoped_lock lock(mutex_);
    if (calls_left_-- != 1) return false;
    reason_ = what + " failed, as planted";
    watched_ = &communicator;
    watch_ = std::jthread([this](const std::stop_token& stopped) { watch(stopped); });
    return true;
  }
  // Must be called before `communicator` is destroyed.
  void forget(const Communicator& communicator) {
    const std::scoped_lock lock(mutex_);
    if (watched_ == &communicator) watched_ = nullptr;
  }
  std::optional<std::string> reason() const {
    const std::scoped_lock lock(mutex_);
    return reason_;
  }

 private:
  // Ends the failed communicator's calls after a while, as NCCL does: calls that wait for another
  // rank then end too, although this rank never asks.
  void watch(const std::stop_token& stopped) {
    std::unique_lock lock(mutex_);
    never_.wait_for(lock, stopped, std::chrono::milliseconds(100), [] { return false; });
    if (watched_ != nullptr) watched_->abort(*reason_);
  }

  mutable std::mutex mutex_;
  std::condition_variable_any never_;
  int calls_left_;                     // guarded by mutex_; below 1: no call fails
  KindsOfCalls* const kinds_;          // may be null
  std::optional<std::string> reason_;  // guarded by mutex_
  Communicator* watched_ = nullptr;    // guarded by mutex_; where the call failed
  std::jthread watch_;
};

class FakeGpuCommunicator final : public Communicator {
 public:
  FakeGpuCommunicator(std::unique_ptr<Communicator> threads, std::shared_ptr<FakeGpuCalls> calls)
      : Communicator(threads->name(), threads->rank(), threads->size()),
        threads_(std::move(threads)),
        calls_(std::move(calls)) {}
  ~FakeGpuCommunicator() override { calls_->forget(*threads_); }
  FakeGpuCommunicator(const FakeGpuCommunicator&) = delete;
  FakeGpuCommunicator& operator=(const FakeGpuCommunicator&) = delete;

  void abort(const std::string& reason) override { threads_->abort(reason); }
  std::optional<std::string> abort_reason() override {
    const std::optional<std::string> own = calls_->reason();
    return own ? own : threads_->abort_reason();
  }

 private:
  void run(const CollectiveCall& call, NativeStream stream) override {
    tell_others();
    throw_if_aborted();
    TERRACE_CHECK(stream.handle != nullptr);
    refuse_what_nccl_cannot(call);
    calls_->note(call, *this);
    FakeGpuQueue& queue = *static_cast<FakeGpuQueue*>(stream.handle);
    CollectiveCall real = call;
    real.target = queue.state().real(call.target);
    real.source = queue.state().real(call.source);
    queue.queue([this, real] { carry_out(real); });
  }

  // NCCL rounds narrow sums after every addition.
  void refuse_what_nccl_cannot(const CollectiveCall& call) const {
    const bool adds = call.op == ReduceOp::kSum && (call.kind == CollectiveKind::kAllReduce ||
                                                    call.kind == CollectiveKind::kReduceScatter);
    const bool narrow = call.dtype == DType::kBF16 || call.dtype == DType::kF16;
    TERRACE_CHECK(!adds || !narrow || size() <= 2);
  }

  void tell_others() {
    if (const std::optional<std::string> reason = calls_->reason()) threads_->abort(*reason);
  }

  // Runs on the stream's thread. A call that is aborted leaves anything in its target.
  void carry_out(const CollectiveCall& call) {
    tell_others();
    if (calls_->fails(describe(call) + " on '" + name() + "'", *threads_)) {
      const bool is_part = call.kind == CollectiveKind::kReduceScatter;
      const std::size_t parts = is_part ? static_cast<std::size_t>(size()) : 1;
      if (call.kind != CollectiveKind::kSend) {
        std::memset(call.target, 0xFF, call.size_bytes() / parts);
      }
      return;
    }
    try {
      repeat_call(call, *threads_, {});
    } catch (const CommError&) {
      TERRACE_CHECK(abort_reason().has_value());  // the rank asks for it
    }
  }

  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override {
    return std::make_unique<FakeGpuCommunicator>(threads_->split(color, key, name), calls_);
  }

  const std::unique_ptr<Communicator> threads_;
  const std::shared_ptr<FakeGpuCalls> calls_;
};

}  // namespace

std::unique_ptr<Communicator> make_fake_gpu_communicator(std::unique_ptr<Communicator> threads,
                                                         int failing_call, KindsOfCalls* kinds) {
  return std::make_unique<FakeGpuCommunicator>(std::move(threads),
                                               std::make_shared<FakeGpuCalls>(failing_call, kinds));
}

}  // namespace terrace::test
