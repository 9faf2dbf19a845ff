#include "parallel/thread_group.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace terrace {
namespace {

// Looking costs nothing compared with the system call of a sleep, and each look lets other threads
// of this core go first.
constexpr int kLooksBeforeSleep = 50;

}  // namespace

void ThreadWorld::enroll(const std::shared_ptr<ThreadGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& other) { return other.expired(); });
  groups_.push_back(group);
}

void ThreadWorld::abort(const std::string& reason) {
  std::vector<std::shared_ptr<ThreadGroup>> to_wake;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_.load()) return;
    reason_ = reason;
    aborted_.store(true);
    for (const auto& group : groups_) to_wake.push_back(group.lock());
  }
  for (const auto& group : to_wake) {
    if (group != nullptr) group->wake_all();
  }
}

std::string ThreadWorld::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadWorld> world, std::string name, int size)
    : made(static_cast<std::size_t>(size)),
      world_(std::move(world)),
      name_(std::move(name)),
      members_(static_cast<std::size_t>(size)),
      mails_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)) {}

ThreadMail& ThreadGroup::mail(int from, int to) {
  return mails_[static_cast<std::size_t>(from) * members_.size() + static_cast<std::size_t>(to)];
}

ThreadGroup::Outcome ThreadGroup::wait(FunctionRef<bool()> reached, FunctionRef<bool()> lost,
                                       std::chrono::steady_clock::time_point deadline) {
  const auto is_over = [&] { return reached() || world_->is_aborted() || lost(); };
  for (int look = 0; look < kLooksBeforeSleep; ++look) {
    if (reached()) return Outcome::kReached;
    std::this_thread::yield();
  }
  bool in_time = false;
  {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    in_time = changed_.wait_until(lock, deadline, is_over);
    sleepers_.fetch_sub(1);
  }
  if (reached()) return Outcome::kReached;
  if (!in_time) return Outcome::kTimedOut;
  return world_->is_aborted() ? Outcome::kAborted : Outcome::kLeft;
}

// The change was made before this call, and a sleeper counts itself before it looks for the last
// time. So one of the two sees the other.
void ThreadGroup::wake_all() {
  if (sleepers_.load() == 0) return;
  {
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

void ThreadGroup::wait_until_nobody_works() {
  const auto someone_works = [&] {
    return std::any_of(members_.begin(), members_.end(),
                       [](const ThreadMember& member) { return member.working.load(); });
  };
  while (someone_works()) std::this_thread::yield();
}

// The order matters: a rank that leaves after an abort either sees this rank at work and waits, or
// has aborted before, which is seen here.
ThreadWork::ThreadWork(ThreadGroup& group, int rank)
    : group_(group), member_(group.member(rank)), allowed_([this] {
        member_.working.store(true);
        return !group_.world()->is_aborted();
      }()) {}

ThreadWork::~ThreadWork() { member_.working.store(false); }

}  // namespace terrace
