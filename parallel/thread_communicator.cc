#include "parallel/thread_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "memory/host/streaming_copy.h"
#include "parallel/rank_order.h"
#include "parallel/thread_group.h"

namespace terrace {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

void copy(std::byte* target, const std::byte* source, std::size_t size_bytes) {
  if (target != source) streaming_copy({target, size_bytes}, {source, size_bytes});
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : Communicator(group->name(), rank, group->size()),
        group_(std::move(group)),
        me_(group_->member(rank)),
        sources_(static_cast<std::size_t>(size())),
        targets_(static_cast<std::size_t>(size())) {}

  ~ThreadCommunicator() override {
    me_.left.store(true);
    group_->wake_all();
  }

  void abort(const std::string& reason) override { group_->world()->abort(reason); }
  std::optional<std::string> abort_reason() override {
    if (!group_->world()->is_aborted()) return std::nullopt;
    return group_->world()->reason();
  }

 private:
  void run(const CollectiveCall& call, NativeStream /*stream*/) override {
    if (group_->world()->is_aborted()) fail(call);
    if (call.kind == CollectiveKind::kSend) return send_mail(call);
    if (call.kind == CollectiveKind::kRecv) return take_mail(call);
    enter(call);
    {
      const ThreadWork work(*group_, rank());
      if (work.is_allowed()) carry_out(call);
    }
    leave(call);
    // A rank that has left out its part saw the abort before it came here, so all ranks see it now.
    if (group_->world()->is_aborted()) fail(call);
  }

  std::unique_ptr<Communicator> run_split(int color, int key, const std::string& name) override;

  // Waits for all ranks, and compares their calls.
  void enter(const CollectiveCall& call);
  void count_wait_for_last();
  // Waits until all ranks have done their part.
  void leave(const CollectiveCall& call);
  void carry_out(const CollectiveCall& call);
  void all_reduce_own_part(const CollectiveCall& call);
  void reduce_own_part(const CollectiveCall& call);
  void copy_parts(const CollectiveCall& call);
  void send_mail(const CollectiveCall& call);
  void take_mail(const CollectiveCall& call);

  void arrive() {
    me_.arrived.store(++points_);
    group_->wake_all();
  }
  bool has_arrived(int rank) const { return group_->member(rank).arrived.load() >= points_; }
  bool all_arrived() const {
    for (int rank = 0; rank < size(); ++rank) {
      if (!has_arrived(rank)) return false;
    }
    return true;
  }
  bool one_has_left() const {
    for (int rank = 0; rank < size(); ++rank) {
      if (group_->member(rank).left.load() && !has_arrived(rank)) return true;
    }
    return false;
  }
  std::string absent(bool that_left) const;

  // Called after an abort. Throws CommError when no rank touches this one's buffers any more.
  [[noreturn]] void fail(const CollectiveCall& call);
  [[noreturn]] void abort_and_fail(const CollectiveCall& call, const std::string& what);
  [[noreturn]] void fail_alone(const CollectiveCall& call, ThreadGroup::Outcome outcome,
                               const std::string& ranks);

  Deadline deadline() const {
    return std::chrono::steady_clock::now() + group_->world()->options().timeout;
  }

  const std::shared_ptr<ThreadGroup> group_;
  ThreadMember& me_;
  std::uint64_t points_ = 0;  // the points that this rank has come to
  // For the call that is being carried out, indexed by rank.
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

void ThreadCommunicator::enter(const CollectiveCall& call) {
  me_.call = call;
  me_.begun = std::chrono::steady_clock::now();
  arrive();
  const ThreadGroup::Outcome outcome =
      group_->wait([&] { return all_arrived(); }, [&] { return one_has_left(); }, deadline());
  if (outcome != ThreadGroup::Outcome::kReached) {
    fail_alone(call, outcome, absent(outcome == ThreadGroup::Outcome::kLeft));
  }
  for (int rank = 1; rank < size(); ++rank) {
    const std::string different =
        mismatch(group_->member(0).call, 0, group_->member(rank).call, rank);
    if (!different.empty()) abort_and_fail(call, different);
  }
  count_wait_for_last();
}

// No rank begins its next collective before this one has left the call.
void ThreadCommunicator::count_wait_for_last() {
  int last = 0;
  for (int rank = 1; rank < size(); ++rank) {
    if (group_->member(rank).begun > group_->member(last).begun) last = rank;
  }
  const std::chrono::duration<double> waited = group_->member(last).begun - me_.begun;
  count_wait(last, waited.count());
}

void ThreadCommunicator::leave(const CollectiveCall& call) {
  arrive();
  // There is no deadline: the work of the others ends by itself, and they read this rank's buffers
  // until then.
  const ThreadGroup::Outcome outcome =
      group_->wait([&] { return all_arrived(); }, [&] { return one_has_left(); }, Deadline::max());
  if (outcome != ThreadGroup::Outcome::kReached) fail_alone(call, outcome, absent(true));
}

void ThreadCommunicator::carry_out(const CollectiveCall& call) {
  if (call.elements == 0) return;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce_own_part(call);
    case CollectiveKind::kReduceScatter:
      return reduce_own_part(call);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return copy_parts(call);
    case CollectiveKind::kBroadcast:
      return copy(call.target, group_->member(call.peer).call.source, call.size_bytes());
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
    case CollectiveKind::kSplit:
      return;
  }
}

// Reduces this rank's own part of all ranks' data, and writes it to all of them. No other rank
// touches that part.
void ThreadCommunicator::all_reduce_own_part(const CollectiveCall& call) {
  const ElementRange part = all_reduce_part(call.elements, rank(), size());
  const std::size_t offset = part.begin * size_of(call.dtype);
  for (int rank = 0; rank < size(); ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    targets_[i] = group_->member(rank).call.target + offset;
    sources_[i] = targets_[i];
  }
  reduce_in_rank_order(targets_, sources_, part.count, call.dtype, call.op);
}

void ThreadCommunicator::reduce_own_part(const CollectiveCall& call) {
  const std::size_t elements = call.elements / static_cast<std::size_t>(size());
  const std::size_t offset = elements * size_of(call.dtype) * static_cast<std::size_t>(rank());
  for (int rank = 0; rank < size(); ++rank) {
    sources_[static_cast<std::size_t>(rank)] = group_->member(rank).call.source + offset;
  }
  std::byte* target = call.target;
  reduce_in_rank_order({&target, 1}, sources_, elements, call.dtype, call.op);
}

// Copies, from every rank, the part for this one: the whole source, or one of its parts.
void ThreadCommunicator::copy_parts(const CollectiveCall& call) {
  const std::size_t part = call.size_bytes() / static_cast<std::size_t>(size());
  const bool scattered = call.kind == CollectiveKind::kAllToAll;
  // Each rank begins with its own part, so that not all read the same rank's memory at once.
  for (int step = 0; step < size(); ++step) {
    const int from = (rank() + step) % size();
    const std::byte* source = group_->member(from).call.source;
    if (scattered) source += part * static_cast<std::size_t>(rank());
    copy(call.target + part * static_cast<std::size_t>(from), source, part);
  }
}

void ThreadCommunicator::send_mail(const CollectiveCall& call) {
  ThreadMail& mail = group_->mail(rank(), call.peer);
  const std::uint64_t number = mail.posted.load() + 1;
  mail.call = call;
  mail.posted.store(number);
  group_->wake_all();
  const auto taken = [&] { return mail.taken.load() >= number; };
  const auto lost = [&] { return group_->member(call.peer).left.load(); };
  const ThreadGroup::Outcome outcome = group_->wait(taken, lost, deadline());
  if (outcome != ThreadGroup::Outcome::kReached) {
    fail_alone(call, outcome, fmt::format("rank {}", call.peer));
  }
}

void ThreadCommunicator::take_mail(const CollectiveCall& call) {
  ThreadMail& mail = group_->mail(call.peer, rank());
  const std::uint64_t number = mail.taken.load() + 1;
  const auto posted = [&] { return mail.posted.load() >= number; };
  const auto lost = [&] { return group_->member(call.peer).left.load(); };
  const ThreadGroup::Outcome outcome = group_->wait(posted, lost, deadline());
  if (outcome != ThreadGroup::Outcome::kReached) {
    fail_alone(call, outcome, fmt::format("rank {}", call.peer));
  }
  const bool is_for_this_call =
      mail.call.dtype == call.dtype && mail.call.elements == call.elements;
  if (!is_for_this_call) {
    CollectiveCall sent = mail.call;
    sent.kind = CollectiveKind::kSend;
    abort_and_fail(call, mismatch(sent, call.peer, call, rank()));
  }
  {
    const ThreadWork work(*group_, rank());
    if (work.is_allowed()) copy(call.target, mail.call.source, call.size_bytes());
  }
  if (group_->world()->is_aborted()) fail(call);
  mail.taken.store(number);
  group_->wake_all();
}

std::unique_ptr<Communicator> ThreadCommunicator::run_split(int color, int key,
                                                            const std::string& name) {
  const CollectiveCall call = {.kind = CollectiveKind::kSplit};
  if (group_->world()->is_aborted()) fail(call);
  me_.color = color;
  me_.key = key;
  enter(call);
  std::vector<std::pair<int, int>> ranks;  // (key, rank) of the ranks of this color
  for (int rank = 0; rank < size(); ++rank) {
    const ThreadMember& member = group_->member(rank);
    if (member.color == color) ranks.emplace_back(member.key, rank);
  }
  std::sort(ranks.begin(), ranks.end());
  const auto first = static_cast<std::size_t>(ranks.front().second);
  if (ranks.front().second == rank()) {
    group_->made[first] =
        std::make_shared<ThreadGroup>(group_->world(), name, static_cast<int>(ranks.size()));
    group_->world()->enroll(group_->made[first]);
  }
  leave(call);
  const std::shared_ptr<ThreadGroup> made = group_->made[first];
  leave(call);
  if (ranks.front().second == rank()) group_->made[first].reset();
  const auto own = std::find(ranks.begin(), ranks.end(), std::pair(key, rank()));
  return std::make_unique<ThreadCommunicator>(made, static_cast<int>(own - ranks.begin()));
}

std::string ThreadCommunicator::absent(bool that_left) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (has_arrived(rank)) continue;
    if (!that_left || group_->member(rank).left.load()) ranks.push_back(rank);
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

void ThreadCommunicator::fail(const CollectiveCall& call) {
  group_->wait_until_nobody_works();
  throw CommError(fmt::format("{} on communicator '{}' (rank {} of {}) was aborted: {}",
                              describe(call), name(), rank(), size(), group_->world()->reason()),
                  "");
}

void ThreadCommunicator::abort_and_fail(const CollectiveCall& call, const std::string& what) {
  group_->world()->abort(fmt::format("communicator '{}': {}", name(), what));
  fail(call);
}

void ThreadCommunicator::fail_alone(const CollectiveCall& call, ThreadGroup::Outcome outcome,
                                    const std::string& ranks) {
  if (outcome == ThreadGroup::Outcome::kTimedOut) {
    const double seconds =
        std::chrono::duration<double>(group_->world()->options().timeout).count();
    abort_and_fail(
        call, fmt::format("{} did not arrive at {} within {:g} s", ranks, describe(call), seconds));
  }
  if (outcome == ThreadGroup::Outcome::kLeft) {
    abort_and_fail(call, fmt::format("{} left before {}", ranks, describe(call)));
  }
  fail(call);
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, const std::string& name, const CommunicatorOptions& options) {
  TERRACE_CHECK_LT(0, size);
  const auto world = std::make_shared<ThreadWorld>(options);
  const auto group = std::make_shared<ThreadGroup>(world, name, size);
  world->enroll(group);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return communicators;
}

}  // namespace terrace
