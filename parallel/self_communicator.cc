#include "parallel/self_communicator.h"

#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

// State shared with the groups that are split off.
struct SelfState {
  std::mutex mutex;
  std::optional<std::string> reason;  // guarded by mutex; why it was aborted
};

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(const std::string& name, std::shared_ptr<SelfState> state)
      : Communicator(name, 0, 1), state_(std::move(state)) {}

  void abort(const std::string& reason) override {
    const std::lock_guard lock(state_->mutex);
    if (!state_->reason) state_->reason = reason;
  }
  std::optional<std::string> abort_reason() override {
    const std::lock_guard lock(state_->mutex);
    return state_->reason;
  }

 private:
  void run(const CollectiveCall& call, NativeStream /*stream*/) override {
    fail_if_aborted(call);
    if (call.elements != 0 && call.target != call.source) {
      std::memcpy(call.target, call.source, call.size_bytes());
    }
  }

  std::unique_ptr<Communicator> run_split(int /*color*/, int /*key*/,
                                          const std::string& name) override {
    fail_if_aborted({.kind = CollectiveKind::kSplit});
    return std::make_unique<SelfCommunicator>(name, state_);
  }

  void fail_if_aborted(const CollectiveCall& call) const {
    const std::lock_guard lock(state_->mutex);
    if (!state_->reason) return;
    throw CommError(fmt::format("{} on communicator '{}' (rank 0 of 1) was aborted: {}",
                                describe(call), name(), *state_->reason),
                    "");
  }

  const std::shared_ptr<SelfState> state_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(const std::string& name) {
  return std::make_unique<SelfCommunicator>(name, std::make_shared<SelfState>());
}

}  // namespace terrace
