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
      pause();
    } else if (looks_ > kBusy) {
      std::this_thread::yield();
    }
  }
  int looks() const { return looks_; }

 private:
  static constexpr int kLooksPerClock = 16;

  // Sleeps for a small part of the time that it has slept already: a long wait gets hardly longer,
  // and takes hardly any time of a processor.
  void pause() {
    constexpr std::chrono::microseconds kLeast(50);
    constexpr std::chrono::microseconds kMost(1000);
    const auto next = std::clamp<Clock::duration>(slept_ / 32, kLeast, kMost);
    std::this_thread::sleep_for(next);
    slept_ += next;
  }

  const Clock::time_point deadline_;
  int looks_ = 0;
  Clock::duration slept_{0};
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

// The time by which a rank waits longer for a rank that passes data of other hosts on to it.
constexpr auto kCarrierGrace = std::chrono::seconds(5);

bool reduces(const CollectiveCall& call) {
  return call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter;
}

// The bytes that a network could carry while a host waits for the host before it in a chain: about
// 50 us of 10 Gbit/s, or 0.5 ms of 1 Gbit/s.
constexpr std::uint64_t kBytesPerHop = 64 * kKiB;

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
    : Communicator(name, transport->layout().rank(), transport->layout().size()),
      transport_(std::move(transport)),
      options_(options),
      slot_bytes_(slot_bytes(size(), layout().hosts() > 1)),
      carries_(layout().has_shared_host() && options.hierarchical != HierarchicalUse::kOff),
      chains_(carries_ && layout().is_in_rank_order()),
      shared_pieces_(carries_ ? 1 + layout().carried_most() : 1),
      their_calls_(static_cast<std::size_t>(size())),
      their_buffers_(static_cast<std::size_t>(size())),
      pieces_(static_cast<std::size_t>(size())) {
  for (int from = 0; from < size(); ++from) {
    carried_place_.push_back(static_cast<std::size_t>(1 + layout().carried_before(from)));
  }
  if (layout().hosts() > 1) {
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

std::byte* StagedCommunicator::slot(int rank, std::uint64_t round) const {
  return transport_->window(rank).data() + kHeadBytes + round % 2 * slot_bytes_;
}

std::byte* StagedCommunicator::staged(int from, int to, std::uint64_t round,
                                      std::size_t room) const {
  const int from_place = layout().place_of(from);
  const int to_place = layout().place_of(to);
  const int place = to_place - (to_place > from_place ? 1 : 0);
  return slot(from, round) + static_cast<std::size_t>(place) * room;
}

// The first place is for the carrier's own piece.
std::byte* StagedCommunicator::carried(int from, std::uint64_t round, std::size_t room) const {
  const int carrier = layout().carrier(from, layout().own_host());
  return slot(carrier, round) + carried_place_[static_cast<std::size_t>(from)] * room;
}

std::span<std::byte> StagedCommunicator::gather_slot(int rank, std::size_t index) const {
  const std::size_t piece = slot_bytes_ / static_cast<std::size_t>(std::max(size() - 1, 1));
  return transport_->window(rank).subspan(kHeadBytes + 2 * slot_bytes_ + index * piece, piece);
}

// Errors of the transport are also told to the other ranks, because they wait for this one.
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
  } else if (goes_in_chain(call)) {
    run_chain(call);
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

ExchangeSetting StagedCommunicator::setting_of(const CollectiveCall& call) {
  ExchangeSetting setting = {.call = call,
                             .rank = rank(),
                             .size = size(),
                             .slot_bytes = slot_bytes_,
                             .shared_pieces = shared_pieces_,
                             .scratch = scratch_};
  if (layout().locals().size() > 1) {
    setting.gather_slots = {gather_slot(rank(), 0), gather_slot(rank(), 1)};
  }
  return setting;
}

void StagedCommunicator::run_staged(const CollectiveCall& call) {
  if (reduces(call)) {
    ReduceExchange pieces(setting_of(call));
    exchange(call, pieces);
  } else {
    MoveExchange pieces(setting_of(call));
    exchange(call, pieces);
  }
}

// Returns the same on all ranks. The chain must not make the busiest host send or receive more, and
// must save more bytes than its hosts, which wait for each other in turn, could send meanwhile.
bool StagedCommunicator::goes_in_chain(const CollectiveCall& call) const {
  if (!reduces(call) || !chains_) return false;
  if (options_.hierarchical == HierarchicalUse::kOn) return true;
  const CrossingBytes chain = chain_crossing(call, layout());
  const CrossingBytes direct = direct_crossing(call, layout());
  const std::uint64_t waiting = static_cast<std::uint64_t>(layout().hosts()) * kBytesPerHop;
  return chain.busiest <= direct.busiest && chain.total + waiting < direct.total;
}

void StagedCommunicator::run_chain(const CollectiveCall& call) {
  const ChainExchange chain(
      {.call = call, .layout = layout(), .slot_bytes = slot_bytes_, .scratch = scratch_});
  receive_for(chain, 0);
  for (std::uint64_t round = 0; round < chain.rounds(); ++round) {
    run_chain_round(call, chain, round);
  }
  for (const MessageSet set : {MessageSet::kEvenRounds, MessageSet::kOddRounds}) {
    wait(call, {.set = set});
  }
  rounds_ += chain.rounds();
  if (call.kind != CollectiveKind::kAllReduce) return;
  MoveExchange reduced(setting_of(call));
  exchange(call, reduced);
}

void StagedCommunicator::receive_for(const ChainExchange& chain, std::uint64_t round) {
  for (const ChainExchange::Incoming& incoming : chain.receives(round)) {
    if (incoming.bytes.empty()) continue;
    transport_->receive(set_of(round), MessageTag::kPiece, incoming.from, incoming.bytes);
  }
}

void StagedCommunicator::run_chain_round(const CollectiveCall& call, const ChainExchange& chain,
                                         std::uint64_t round) {
  const std::uint64_t number = rounds_ + round;
  // The slot held the pieces of the round before the last.
  if (number >= 2) wait_for_locals(call, &WindowHead::consumed, number - 1, MessageSet::kCall);
  const std::vector<int>& locals = layout().locals();
  for (const int to : locals) {
    const std::span<const std::byte> piece = chain.give(round, layout().place_of(to));
    if (to == rank() || piece.empty()) continue;
    std::memcpy(staged(rank(), to, number, chain.room()), piece.data(), piece.size());
  }
  head(rank()).given.store(number + 1);
  if (round + 1 < chain.rounds()) receive_for(chain, round + 1);
  wait_for_locals(call, &WindowHead::given, number + 1, set_of(round));
  for (const int from : locals) {
    pieces_[static_cast<std::size_t>(layout().place_of(from))] =
        from == rank() ? chain.give(round, layout().place_of(from)).data()
                       : staged(from, rank(), number, chain.room());
  }
  const ChainExchange::Outgoing outgoing =
      chain.reduce(round, std::span(pieces_).first(locals.size()));
  head(rank()).consumed.store(number + 1);
  if (outgoing.bytes.empty()) return;
  transport_->send(set_of(round), MessageTag::kPiece, outgoing.to, outgoing.bytes);
}

void StagedCommunicator::meet(const CollectiveCall& call) {
  own_call_ = to_wire(call);
  own_call_.hierarchical = static_cast<std::uint8_t>(options_.hierarchical);
  // A rank that writes call n has finished call n-1, so all ranks have begun n-1, and no rank reads
  // n-2 any more.
  head(rank()).calls[calls_ % 2] = own_call_;
  head(rank()).buffers[calls_ % 2] = {.source = call.source, .target = call.target};
  head(rank()).arrived.store(++calls_);
  for (int other = 0; other < size(); ++other) {
    if (layout().is_local(other)) continue;
    const auto i = static_cast<std::size_t>(other);
    transport_->receive(MessageSet::kCall, MessageTag::kCall, other,
                        std::as_writable_bytes(std::span(&their_calls_[i], 1)));
    transport_->send(MessageSet::kCall, MessageTag::kCall, other, bytes_of(own_call_));
  }
  const Clock::time_point begun = Clock::now();
  const int last = wait_for_locals(call, &WindowHead::arrived, calls_, MessageSet::kCall);
  if (last >= 0) count_wait(last, std::chrono::duration<double>(Clock::now() - begun).count());
  for (const int local : layout().locals()) {
    const WindowHead& theirs = head(local);
    their_calls_[static_cast<std::size_t>(local)] = theirs.calls[(calls_ - 1) % 2];
    their_buffers_[static_cast<std::size_t>(local)] = theirs.buffers[(calls_ - 1) % 2];
  }
  for (int other = 1; other < size(); ++other) {
    const WireCall& theirs = their_calls_[static_cast<std::size_t>(other)];
    std::string different = mismatch(from_wire(their_calls_[0]), 0, from_wire(theirs), other);
    if (different.empty() && theirs.hierarchical != their_calls_[0].hierarchical) {
      different = fmt::format("ranks 0 and {} have different --hierarchical-collectives", other);
    }
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
  // The slot held the pieces of the round before the last.
  if (number >= 2) wait_for_locals(call, &WindowHead::consumed, number - 1, MessageSet::kCall);
  const bool shared = pieces.is_shared(round);
  bool is_staged = pieces.gather_slot(round).has_value();
  for (int to = 0; to < size(); ++to) {
    if (to == rank()) continue;
    const std::span<const std::byte> piece = pieces.give(round, to);
    if (!layout().is_local(to)) {
      post_messages(pieces, round, to);
    } else if (!piece.empty() && !(shared && is_staged)) {
      std::byte* const place =
          shared ? slot(rank(), number) : staged(rank(), to, number, pieces.room());
      std::memcpy(place, piece.data(), piece.size());
      is_staged = true;
    }
  }
  head(rank()).given.store(number + 1);
}

// Posts the messages of a round to and from a rank of another host.
void StagedCommunicator::post_messages(Exchange& pieces, std::uint64_t round, int other) {
  const std::uint64_t number = rounds_ + round;
  const bool once = carries_ && pieces.is_shared(round);
  const int own_host = layout().own_host();
  std::span<std::byte> place = pieces.place(round, other);
  if (once && layout().locals().size() > 1) {
    place = {carried(other, number, pieces.room()), place.size()};
  }
  if (!place.empty() && (!once || layout().carrier(other, own_host) == rank())) {
    transport_->receive(set_of(number), MessageTag::kPiece, other, place);
  }
  const std::span<const std::byte> piece = pieces.give(round, other);
  if (!piece.empty() && (!once || layout().carrier(rank(), layout().host_of(other)) == other)) {
    transport_->send(set_of(number), MessageTag::kPiece, other, piece);
  }
}

void StagedCommunicator::take(const CollectiveCall& call, Exchange& pieces, std::uint64_t round) {
  const std::uint64_t number = rounds_ + round;
  const bool shared = pieces.is_shared(round);
  const bool is_carried = carries_ && shared && layout().locals().size() > 1;
  if (is_carried) {
    wait(call, {.set = set_of(number), .only_receives = true});
    head(rank()).carried.store(number + 1);
    // A carrier that waits for a rank of another host says so before this rank's patience ends.
    wait_for_locals(call, &WindowHead::carried, number + 1, MessageSet::kCall, kCarrierGrace);
  }
  wait_for_locals(call, &WindowHead::given, number + 1, set_of(number));
  const std::optional<std::size_t> gathered = pieces.gather_slot(round);
  for (int from = 0; from < size(); ++from) {
    const std::byte*& piece = pieces_[static_cast<std::size_t>(from)];
    if (from == rank()) {
      piece = pieces.give(round, from).data();
    } else if (!layout().is_local(from)) {
      piece = is_carried ? carried(from, number, pieces.room()) : pieces.place(round, from).data();
    } else if (gathered) {
      piece = gather_slot(from, *gathered).data();
    } else {
      piece = shared ? slot(from, number) : staged(from, rank(), number, pieces.room());
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
  wait(call, {.set = MessageSet::kCall});
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
    wait(call, {.set = MessageSet::kCall});
  }
}

std::unique_ptr<Communicator> StagedCommunicator::run_split(int color, int key,
                                                            const std::string& name) {
  const CollectiveCall call = {.kind = CollectiveKind::kSplit};
  if (transport_->is_aborted()) fail(call);
  meet(call);
  return std::make_unique<StagedCommunicator>(transport_->split(color, key), name, options_);
}

int StagedCommunicator::wait_for_locals(const CollectiveCall& call,
                                        std::atomic<std::uint64_t> WindowHead::* count,
                                        std::uint64_t at_least, MessageSet set,
                                        std::chrono::nanoseconds grace) {
  return wait(call, {.set = set, .count = count, .at_least = at_least, .grace = grace});
}

bool StagedCommunicator::is_missing(const Awaited& awaited, int rank) const {
  return awaited.count != nullptr && layout().is_local(rank) &&
         (head(rank).*awaited.count).load() < awaited.at_least;
}

// Returns the rank that a wait is for, if there is only one.
int StagedCommunicator::only_missing(const Awaited& awaited) const {
  const Transport::PendingReceives receives = transport_->pending_receives(awaited.set);
  int count = receives.count;
  int missing = receives.from;
  for (const int local : layout().locals()) {
    if (!is_missing(awaited, local)) continue;
    ++count;
    missing = local;
  }
  return count == 1 ? missing : -1;
}

int StagedCommunicator::wait(const CollectiveCall& call, const Awaited& awaited) {
  const std::vector<int>& locals = layout().locals();
  const MessageSet set = awaited.set;
  const auto is_over = [&] {
    const bool all_done = transport_->all_done(set);  // always: it also makes progress
    const bool messages_done =
        all_done || (awaited.only_receives && transport_->pending_receives(set).count == 0);
    return messages_done && std::none_of(locals.begin(), locals.end(),
                                         [&](int local) { return is_missing(awaited, local); });
  };
  constexpr int kLooksPerNews = 32;
  Patience patience(options_.timeout + awaited.grace);
  int last = -1;
  while (!is_over()) {
    last = only_missing(awaited);
    if (patience.looks() % kLooksPerNews == 0) {
      if (transport_->is_aborted()) fail(call);
      for (const int local : locals) {
        if (head(local).has_left.load() == 0 || !is_missing(awaited, local)) continue;
        abort_and_fail(call, fmt::format("rank {} left before {}", local, describe(call)));
      }
    }
    if (patience.is_over()) {
      std::vector<int> missing;
      for (int rank = 0; rank < size(); ++rank) {
        if (is_missing(awaited, rank) || transport_->is_pending(set, rank)) missing.push_back(rank);
      }
      abort_and_fail(call, fmt::format("{} {} did not arrive at {} within {:g} s",
                                       missing.size() == 1 ? "rank" : "ranks",
                                       fmt::join(missing, ", "), describe(call),
                                       std::chrono::duration<double>(options_.timeout).count()));
    }
    patience.look_again();
  }
  return last;
}

void StagedCommunicator::fail_with_locals(const CollectiveCall& call) {
  const std::vector<int>& locals = layout().locals();
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
