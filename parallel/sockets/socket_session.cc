#include "parallel/sockets/socket_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "parallel/mpi/staged_communicator.h"
#include "parallel/sockets/socket_meeting.h"
#include "parallel/sockets/socket_transport.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// The groups that every session begins with.
constexpr std::uint32_t kPlacesGroup = 0;
constexpr std::uint32_t kNewsGroup = 1;
constexpr std::uint32_t kFirstWorld = 2;

// The time that a rank at its end waits for the others, as in an MPI job.
constexpr auto kEndGrace = std::chrono::seconds(20);
constexpr auto kEndGraceAfterAbort = std::chrono::seconds(3);

// The longest time for which one set of addresses of rank 0 is tried.
constexpr auto kTryTime = std::chrono::seconds(2);
constexpr auto kTryPause = std::chrono::milliseconds(50);

// The facts that rank 0 tells all ranks by the rendezvous. They are sent as they lie in memory.
struct FirstRank {
  WorldId world = {};
  HostKey host = {};
  std::int32_t port = 0;
  std::int32_t address_count = 0;
  std::array<TcpAddress, 16> addresses = {};
};
static_assert(sizeof(FirstRank) <= kRendezvousBlobMax);

// The exchange by which a rank learns the places of all ranks: rank 0 collects them and sends them
// to all.
class PlaceExchange {
 public:
  PlaceExchange(const SocketSetting& setting, SocketWorld& world)
      : setting_(setting), world_(world), deadline_(Clock::now() + setting.timeout) {}

  // Meets the other ranks, and sets the world's id, gate and addresses.
  void run() {
    const RendezvousOptions& meeting = setting_.meeting;
    FirstRank first;
    if (meeting.rank == 0) {
      first.world = random_world_id();
      open_gate(first.world);
      describe_self(first);
    }
    share_from_first_rank(meeting, std::as_writable_bytes(std::span(&first, 1)));
    deadline_ = Clock::now() + setting_.timeout;
    if (meeting.rank != 0) open_gate(first.world);
    places_.resize(static_cast<std::size_t>(meeting.size));
    TcpAddress reached;
    if (meeting.rank == 0) {
      collect();
    } else {
      ask(first, reached);
    }
    world_.addresses = std::make_unique<RankAddresses>(
        RankAddresses::Setting{.world = world_.id,
                               .rank = meeting.rank,
                               .first = reached,
                               .ranks_per_host = setting_.ranks_per_host},
        places_);
  }

 private:
  void open_gate(const WorldId& id) {
    world_.id = id;
    world_.gate = std::make_unique<SocketGate>(id, setting_.meeting.rank);
  }

  void describe_self(FirstRank& first) const {
    first.host = own_host_key();
    first.port = world_.gate->port();
    for (const TcpAddress& address : own_addresses()) {
      if (first.address_count == std::ssize(first.addresses)) break;
      first.addresses.at(static_cast<std::size_t>(first.address_count++)) =
          at_port(address, first.port);
    }
  }

  RankPlace own_place() const {
    return {.host = own_host_key(), .port = world_.gate->port(), .address = {}};
  }

  // Rank 0: hears the place of every rank, and tells all of them all places.
  void collect() {
    places_[0] = own_place();
    std::vector<TcpSocket> guests(places_.size());
    for (std::size_t heard = 1; heard < places_.size();) {
      world_.gate->look();
      const std::size_t before = heard;
      for (std::size_t rank = 1; rank < places_.size(); ++rank) {
        if (!guests[rank].is_open() && hear(rank, guests[rank])) ++heard;
      }
      if (heard != before) continue;
      if (Clock::now() > deadline_) fail_without(guests);
      std::vector<TcpWait> waits;
      world_.gate->add_waits(waits);
      wait_for_any(waits, Clock::now() + std::chrono::milliseconds(2));
    }
    for (std::size_t rank = 1; rank < places_.size(); ++rank) {
      guests[rank].send_all(std::as_bytes(std::span(places_)), deadline_);
    }
  }

  // Returns whether that rank has come and told its place.
  bool hear(std::size_t rank, TcpSocket& guest) {
    const GroupId group = SocketWorld::group_id(-1, kPlacesGroup);
    TcpSocket socket = world_.gate->take(group, static_cast<int>(rank));
    if (!socket.is_open()) return false;
    RankPlace& place = places_[rank];
    if (!socket.receive_all(std::as_writable_bytes(std::span(&place, 1)), deadline_)) return false;
    if (place.host != places_[0].host) place.address = socket.peer_address();
    guest = std::move(socket);
    return true;
  }

  [[noreturn]] static void fail_without(const std::vector<TcpSocket>& guests) {
    std::vector<std::string> missing;
    for (std::size_t rank = 1; rank < guests.size(); ++rank) {
      if (guests[rank].is_open()) continue;
      missing.push_back(fmt::format("rank {} has not connected to rank 0", rank));
    }
    fail_to_connect(missing);
  }

  // The other ranks: tell rank 0 their place, and get all places. `reached` is set to the address
  // where rank 0 was reached, if that is on another host.
  void ask(const FirstRank& first, TcpAddress& reached) {
    const TcpSocket socket = reach(first, reached);
    const RankPlace own = own_place();
    if (!socket.send_all(std::as_bytes(std::span(&own, 1)), deadline_) ||
        !socket.receive_all(std::as_writable_bytes(std::span(places_)), deadline_)) {
      throw CommError("rank 0 has left before the ranks were connected",
                      "its own error says why, or which ranks it has not found");
    }
  }

  TcpSocket reach(const FirstRank& first, TcpAddress& reached) const {
    const GateHello hello = {.from = setting_.meeting.rank,
                             .to = 0,
                             .world = world_.id,
                             .group = SocketWorld::group_id(-1, kPlacesGroup)};
    for (;;) {
      for (const std::vector<GateAddress>& addresses : ways_to(first)) {
        std::size_t at = 0;
        TcpSocket socket =
            call_one_of(addresses, hello, std::min(deadline_, Clock::now() + kTryTime), at);
        if (!socket.is_open()) continue;
        reached = addresses[at].tcp;
        return socket;
      }
      if (Clock::now() > deadline_) break;
      std::this_thread::sleep_for(kTryPause);
    }
    std::vector<std::string> missing;
    for (const std::vector<GateAddress>& addresses : ways_to(first)) {
      for (const GateAddress& address : addresses) {
        missing.push_back(fmt::format("rank 0 does not answer at {}", text_of(address)));
      }
    }
    fail_to_connect(missing);
  }

  // Returns lists of addresses in the order in which they are tried: the user's choice first, then
  // all that rank 0 has.
  std::vector<std::vector<GateAddress>> ways_to(const FirstRank& first) const {
    std::vector<std::vector<GateAddress>> ways(1);
    if (first.host == own_host_key()) {
      ways[0].push_back({.local_name = local_name_of(first.world, 0), .tcp = {}});
      return ways;
    }
    ways.resize(2);
    for (const TcpAddress& address : resolve_tcp(setting_.meeting.address).addresses) {
      ways[0].push_back({.local_name = {}, .tcp = at_port(address, first.port)});
    }
    for (int i = 0; i < first.address_count; ++i) {
      ways[1].push_back({.local_name = {}, .tcp = first.addresses.at(static_cast<std::size_t>(i))});
    }
    return ways;
  }

  const SocketSetting& setting_;
  SocketWorld& world_;
  TcpDeadline deadline_;
  std::vector<RankPlace> places_;
};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

void SocketSetting::limit_time(std::chrono::nanoseconds longest) {
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(longest);
  meeting.timeout = std::min(meeting.timeout, limit);
  timeout = std::min(timeout, limit);
}

SocketSetting socket_setting(const LaunchEnvironment& launch) {
  if (launch.local_size < launch.size && launch.master_address == "127.0.0.1") {
    throw EnvironmentError(
        fmt::format("{} started {} ranks on several hosts, but no variable says where they meet",
                    launch.source_is, launch.size),
        "set MASTER_ADDR to an address of the first host, the same for all ranks");
  }
  return {.meeting = rendezvous_options(launch)};
}

SocketSession::SocketSession(const SocketSetting& setting)
    : world_(std::make_shared<SocketWorld>()) {
  world_->rank = setting.meeting.rank;
  world_->timeout = setting.timeout;
  world_->reads_peers = setting.reads_peers;
  world_->worlds = kFirstWorld;
  PlaceExchange(setting, *world_).run();
  const SocketMeeting meeting = {.gate = *world_->gate,
                                 .addresses = *world_->addresses,
                                 .world = world_->id,
                                 .rank = world_->rank,
                                 .group = SocketWorld::group_id(-1, kNewsGroup),
                                 .deadline = Clock::now() + setting.timeout};
  world_->news =
      std::make_unique<SocketNews>(world_->rank, meeting.connect(all_ranks(setting.meeting.size)));
}

SocketSession::~SocketSession() {
  if (!has_ended_) end(0);
}

int SocketSession::rank() const { return world_->rank; }
int SocketSession::size() const { return world_->addresses->size(); }
int SocketSession::hosts() const { return world_->addresses->hosts(); }

std::unique_ptr<Communicator> SocketSession::make_world(const std::string& name,
                                                        const CommunicatorOptions& options) {
  const GroupId group = SocketWorld::group_id(-1, world_->worlds++);
  return std::make_unique<StagedCommunicator>(
      make_socket_transport(world_, all_ranks(size()), group), name, options);
}

int SocketSession::end(int code) {
  TERRACE_CHECK(!has_ended_);
  has_ended_ = true;
  world_->news->tell_end(code);
  const TcpDeadline begun = Clock::now();
  while (!world_->news->all_have_ended()) {
    const auto grace = world_->news->is_aborted() ? kEndGraceAfterAbort : kEndGrace;
    if (Clock::now() > begun + grace) return std::max(world_->news->largest_code(), 1);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return world_->news->largest_code();
}

}  // namespace terrace
