#include "parallel/mpi/staged_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeadBytes = 4096;
constexpr std::size_t kMessageBytesMax = std::size_t{256} << 20;
static_assert(sizeof(WindowHead) <= kHeadBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "it is shared between processes");

// Returns the room for the pieces of a round, each on cache lines of its own. On one host, two
// rounds of two ranks fit the second-level cache of a core. A message between hosts is asked for
// before it is sent; that would not be worth it for smaller messages, nor for the small pieces of
// many ranks.
std::size_t slot_bytes(int ranks, bool spans_hosts) {
  constexpr std::size_t kLine = 64;
  const auto pieces = static_cast<std::size_t>(std::max(ranks - 1, 1));
  const std::size_t room = spans_hosts ? kMiB : 256 * kKiB;
  return round_up(std::max(room, pieces * 32 * kKiB), pieces * kLine);
}

// Waits by looking again, ever more rarely, so that other threads of this processor go first.
class Patience {
 public:
  explicit Patience(std::chrono::nanoseconds timeout) : deadline_(Clock::now() + timeout) {}

  bool is_over() const { return looks_ % kLooksPerClock == 0 && Clock::now() > deadline_; }
  void look_again() {
    constexpr int kBusy = 100;
    constexpr int kYielding = 4000;
    ++looks_;
    if (looks_ > kYielding) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else if (looks_ > kBusy) {
      std::this_thread::yield();
    }
  }
  int looks() const { return looks_; }

 private:
  static constexpr int kLooksPerClock = 16;
  const Clock::time_point deadline_;
  int looks_ = 0;
};

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// The bytes that ranks which read each other's memory take at a time when they reduce.
std::size_t direct_scratch_bytes(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  return std::max(512 * kKiB, count * 64 * kKiB);
}

// Returns the smallest number of bytes per rank for which reading directly is worth the system
// calls. In an all_reduce, the data just written is in the other core's own caches while it is
// small, and comes no faster from there than from a window.
std::size_t direct_part_min(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce ? kMiB : 64 * kKiB;
}

// The bytes read at a time, between two looks for an abort.
constexpr std::size_t kDirectReadBytesMax = 16 * kMiB;

MessageSet set_of(std::uint64_t round) {
  return round % 2 == 0 ? MessageSet::kEvenRounds : MessageSet::kOddRounds;
}

}  // namespace

// A window has its head, two slots, and two gather slots of one piece each.
std::size_t window_bytes(int ranks, bool spans_hosts) {
  const std::size_t slot = slot_bytes(ranks, spans_hosts);
  return kHeadBytes + 2 * slot + 2 * (slot / static_cast<std::size_t>(std::max(ranks - 1, 1)));
}

StagedCommunicator::StagedCommunicator(std::unique_ptr<Transport> transport,
                                       const std::string& name, const CommunicatorOptions& options)
    : Communicator(name, transport->rank(), transport->size()),
      transport_(std::move(transport)),
      options_(options),
      slot_bytes_(slot_bytes(
          size(), static_cast<int>(transport_->local_ranks().size()) < transport_->size())),
      local_index_(static_cast<std::size_t>(size()), -1),
      their_calls_(static_cast<std::size_t>(size())),
      their_buffers_(static_cast<std::size_t>(size())),
      pieces_(static_cast<std::size_t>(size())) {
  const std::vector<int>& locals = transport_->local_ranks();
  for (std::size_t i = 0; i < locals.size(); ++i) {
    local_index_[static_cast<std::size_t>(locals[i])] = static_cast<int>(i);
  }
  if (static_cast<int>(locals.size()) < size()) {
    const auto ranks = static_cast<std::size_t>(size());
    scratch_.resize(2 * ranks * (slot_bytes_ / (ranks - 1)));
  } else if (size() > 1 && transport_->reads_peers()) {
    scratch_.resize(direct_scratch_bytes(size()));
  }
}

StagedCommunicator::~StagedCommunicator() { head(rank()).has_left.store(1); }

WindowHead& StagedCommunicator::head(int rank) const {
  return *reinterpret_cast<WindowHead*>(transport_->window(rank).data());
}

std::byte* StagedCommunicator::staged(int from, int to, std::uint64_t round, bool shared,
                                      std::size_t piece) const {
  const int from_index = local_index_[static_cast<std::size_t>(from)];
  const int to_index = local_index_[static_cast<std::size_t>(to)];
  const int place = shared ? 0 : to_index - (to_index > from_index ? 1 : 0);
  return transport_->window(from).data() + kHeadBytes + round % 2 * slot_bytes_ +
         static_cast<std::size_t>(place) * piece;
}

std::span<std::byte> StagedCommunicator::gather_slot(int rank, std::size_t index) const {
  const std::size_t piece = slot_bytes_ / static_cast<std::size_t>(std::max(size() - 1, 1));
  return transport_->window(rank).subspan(kHeadBytes + 2 * slot_bytes_ + index * piece, piece);
}

// Errors of MPI itself are also told to the other ranks, because they wait for this one.
void StagedCommunicator::run(const CollectiveCall& call, NativeStream /*stream*/) {
  if (transport_->is_aborted()) fail(call);
  try {
    carry_out(call);
  } catch (const CommError& error) {
    transport_->abort(error.what());
    throw;
  }
}

void StagedCommunicator::carry_out(const CollectiveCall& call) {
  if (call.kind == CollectiveKind::kSend || call.kind == CollectiveKind::kRecv) {
    return run_pair(call);
  }
  meet(call);
  if (goes_direct(call)) {
    run_direct(call);
  } else {
    run_staged(call);
  }
}

// Returns the same on all ranks.
bool StagedCommunicator::goes_direct(const CollectiveCall& call) const {
  const auto ranks = static_cast<std::size_t>(size());
  const bool in_parts = call.kind != CollectiveKind::kBroadcast;
  const std::size_t part = call.size_bytes() / (in_parts ? ranks : 1);
  return size() > 1 && transport_->reads_peers() && part >= direct_part_min(call.kind);
}

void StagedCommunicator::run_direct(const CollectiveCall& call) {
  const auto read = [&](int from, const std::byte* address, std::span<std::byte> to) {
    for (std::size_t at = 0; at < to.size(); at += kDirectReadBytesMax) {
      if (transport_->is_aborted()) fail(call);
      const std::size_t bytes = std::min(kDirectReadBytesMax, to.size() - at);
      const int error_number = transport_->read_from(from, address + at, to.subspan(at, bytes));
      if (error_number == 0) continue;
      fail_with_locals(call);
      if (transport_->is_aborted()) fail(call);
      abort_and_fail(call, fmt::format("rank {} cannot read the memory of rank {} for {}: {}",
                                       rank(), from, describe(call), std::strerror(error_number)));
    }
  };
  DirectExchange direct({.call = call,
                         .rank = rank(),
                         .buffers = their_buffers_,
                         .scratch = scratch_,
                         .sources = pieces_},
                        read);
  for (int phase = 0; phase < direct.phases(); ++phase) {
    direct.run(phase);
    head(rank()).consumed.store(++rounds_);
    wait_for_locals(call, &WindowHead::consumed, rounds_, MessageSet::kCall);
  }
  fail_with_locals(call);
}

void StagedCommunicator::run_staged(const CollectiveCall& call) {
  ExchangeSetting setting = {
      .call = call, .rank = rank(), .size = size(), .slot_bytes = slot_bytes_, .scratch = scratch_};
  if (transport_->local_ranks().size() > 1) {
    setting.gather_slots = {gather_slot(rank(), 0), gather_slot(rank(), 1)};
  }
  if (call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter) {
    ReduceExchange pieces(setting);
    exchange(call, pieces);
  } else {
    MoveExchange pieces(setting);
    exchange(call, pieces);
  }
}

void StagedCommunicator::meet(const CollectiveCall& call) {
  own_call_ = to_wire(call);
  // A rank that writes call n has finished call n-1, so all ranks have begun n-1, and no rank reads
  // n-2 any more.
  head(rank()).calls[calls_ % 2] = own_call_;
  head(rank()).buffers[calls_ % 2] = {.source = call.source, .target = call.target};
  head(rank()).arrived.store(++calls_);
  for (int other = 0; other < size(); ++other) {
    if (is_local(other)) continue;
    const auto i = static_cast<std::size_t>(other);
    transport_->receive(MessageSet::kCall, MessageTag::kCall, other,
                        std::as_writable_bytes(std::span(&their_calls_[i], 1)));
    transport_->send(MessageSet::kCall, MessageTag::kCall, other, bytes_of(own_call_));
  }
  wait_for_locals(call, &WindowHead::arrived, calls_, MessageSet::kCall);
  for (const int local : transport_->local_ranks()) {
    const WindowHead& theirs = head(local);
    their_calls_[static_cast<std::size_t>(local)] = theirs.calls[(calls_ - 1) % 2];
    their_buffers_[static_cast<std::size_t>(local)] = theirs.buffers[(calls_ - 1) % 2];
  }
  for (int other = 1; other < size(); ++other) {
    const std::string different =
        mismatch(from_wire(their_calls_[0]), 0,
                 from_wire(their_calls_[static_cast<std::size_t>(other)]), other);
    if (!different.empty()) abort_and_fail(call, different);
  }
}

void StagedCommunicator::exchange(const CollectiveCall& call, Exchange& pieces) {
  const std::uint64_t rounds = pieces.rounds();
  if (rounds == 0) return;
  const bool ahead = pieces.gives_ahead();
  give(call, pieces, 0);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    if (ahead && round + 1 < rounds) give(call, pieces, round + 1);
    take(call, pieces, round);
    if (!ahead && round + 1 < rounds) give(call, pieces, round + 1);
  }
  rounds_ += rounds;
}

void StagedCommunicator::give(const CollectiveCall& call, Exchange& pieces, std::uint64_t round) {
  const std::uint64_t number = rounds_ + round;
  const MessageSet set = set_of(number);
  // The slot held the pieces of the round before the last.
  if (number >= 2) wait_for_locals(call, &WindowHead::consumed, number - 1, MessageSet::kCall);
  const bool shared = pieces.is_shared(round);
  bool is_staged = pieces.gather_slot(round).has_value();
  for (int to = 0; to < size(); ++to) {
    if (to == rank()) continue;
    const std::span<const std::byte> piece = pieces.give(round, to);
    if (!is_local(to)) {
      const std::span<std::byte> place = pieces.place(round, to);
      if (!place.empty()) transport_->receive(set, MessageTag::kPiece, to, place);
      if (!piece.empty()) transport_->send(set, MessageTag::kPiece, to, piece);
    } else if (!piece.empty() && !(shared && is_staged)) {
      const std::size_t room = shared ? 0 : slot_bytes_ / static_cast<std::size_t>(size() - 1);
      std::memcpy(staged(rank(), to, number, shared, room), piece.data(), piece.size());
      is_staged = true;
    }
  }
  head(rank()).given.store(number + 1);
}

void StagedCommunicator::take(const CollectiveCall& call, Exchange& pieces, std::uint64_t round) {
  const std::uint64_t number = rounds_ + round;
  wait_for_locals(call, &WindowHead::given, number + 1, set_of(number));
  const bool shared = pieces.is_shared(round);
  const std::size_t room =
      shared ? 0 : slot_bytes_ / static_cast<std::size_t>(std::max(size() - 1, 1));
  const std::optional<std::size_t> gathered = pieces.gather_slot(round);
  for (int from = 0; from < size(); ++from) {
    const std::byte*& piece = pieces_[static_cast<std::size_t>(from)];
    if (from == rank()) {
      piece = pieces.give(round, from).data();
    } else if (is_local(from)) {
      piece = gathered ? gather_slot(from, *gathered).data()
                       : staged(from, rank(), number, shared, room);
    } else {
      piece = pieces.place(round, from).data();
    }
  }
  pieces.consume(round, pieces_);
  head(rank()).consumed.store(number + 1);
}

// Sends first the call, which the receiver must have taken, then the data.
void StagedCommunicator::run_pair(const CollectiveCall& call) {
  const auto peer = static_cast<std::size_t>(call.peer);
  const bool sends = call.kind == CollectiveKind::kSend;
  own_call_ = to_wire(call);
  if (sends) {
    transport_->send(MessageSet::kCall, MessageTag::kPairCall, call.peer, bytes_of(own_call_));
  } else {
    transport_->receive(MessageSet::kCall, MessageTag::kPairCall, call.peer,
                        std::as_writable_bytes(std::span(&their_calls_[peer], 1)));
  }
  wait(call, MessageSet::kCall, [](int /*rank*/) { return false; });
  if (!sends) {
    const std::string different = mismatch(from_wire(their_calls_[peer]), call.peer, call, rank());
    if (!different.empty()) abort_and_fail(call, different);
  }
  move_pair_data(call);
}

void StagedCommunicator::move_pair_data(const CollectiveCall& call) {
  for (std::size_t at = 0; at < call.size_bytes(); at += kMessageBytesMax) {
    const std::size_t bytes = std::min(kMessageBytesMax, call.size_bytes() - at);
    if (call.kind == CollectiveKind::kSend) {
      transport_->send(MessageSet::kCall, MessageTag::kPairData, call.peer,
                       {call.source + at, bytes});
    } else {
      transport_->receive(MessageSet::kCall, MessageTag::kPairData, call.peer,
                          {call.target + at, bytes});
    }
    wait(call, MessageSet::kCall, [](int /*rank*/) { return false; });
  }
}

std::unique_ptr<Communicator> StagedCommunicator::run_split(int color, int key,
                                                            const std::string& name) {
  const CollectiveCall call = {.kind = CollectiveKind::kSplit};
  if (transport_->is_aborted()) fail(call);
  meet(call);
  return std::make_unique<StagedCommunicator>(transport_->split(color, key), name, options_);
}

void StagedCommunicator::wait_for_locals(const CollectiveCall& call,
                                         std::atomic<std::uint64_t> WindowHead::* count,
                                         std::uint64_t at_least, MessageSet set) {
  wait(call, set,
       [&](int other) { return is_local(other) && (head(other).*count).load() < at_least; });
}

void StagedCommunicator::wait(const CollectiveCall& call, MessageSet set,
                              FunctionRef<bool(int)> is_missing) {
  const std::vector<int>& locals = transport_->local_ranks();
  const auto is_over = [&] {
    const bool messages_done = transport_->all_done(set);  // always: it also makes progress
    return messages_done &&
           std::none_of(locals.begin(), locals.end(), [&](int rank) { return is_missing(rank); });
  };
  constexpr int kLooksPerNews = 32;
  Patience patience(options_.timeout);
  while (!is_over()) {
    if (patience.looks() % kLooksPerNews == 0) {
      if (transport_->is_aborted()) fail(call);
      for (const int local : locals) {
        if (head(local).has_left.load() == 0 || !is_missing(local)) continue;
        abort_and_fail(call, fmt::format("rank {} left before {}", local, describe(call)));
      }
    }
    if (patience.is_over()) {
      std::vector<int> missing;
      for (int rank = 0; rank < size(); ++rank) {
        if (is_missing(rank) || transport_->is_pending(set, rank)) missing.push_back(rank);
      }
      abort_and_fail(call, fmt::format("{} {} did not arrive at {} within {:g} s",
                                       missing.size() == 1 ? "rank" : "ranks",
                                       fmt::join(missing, ", "), describe(call),
                                       std::chrono::duration<double>(options_.timeout).count()));
    }
    patience.look_again();
  }
}

void StagedCommunicator::fail_with_locals(const CollectiveCall& call) {
  const std::vector<int>& locals = transport_->local_ranks();
  const auto failed =
      std::ranges::find_if(locals, [&](int local) { return head(local).has_failed.load() != 0; });
  if (failed == locals.end()) return;
  // That rank knew of an abort, so the news of the abort is on its way here.
  Patience patience(std::chrono::seconds(10));
  while (!transport_->is_aborted() && !patience.is_over()) patience.look_again();
  if (transport_->is_aborted()) fail(call);
  abort_and_fail(call, fmt::format("rank {} failed before {}", *failed, describe(call)));
}

void StagedCommunicator::fail(const CollectiveCall& call) {
  head(rank()).has_failed.store(1);
  transport_->drop();
  throw CommError(fmt::format("{} on communicator '{}' (rank {} of {}) was aborted: {}",
                              describe(call), name(), rank(), size(), transport_->abort_reason()),
                  "");
}

void StagedCommunicator::abort_and_fail(const CollectiveCall& call, const std::string& what) {
  transport_->abort(fmt::format("communicator '{}': {}", name(), what));
  fail(call);
}

}  // namespace terrace
