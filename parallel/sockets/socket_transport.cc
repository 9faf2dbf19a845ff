#include "parallel/sockets/socket_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "parallel/mpi/peer_memory.h"
#include "parallel/sockets/message_stream.h"
#include "parallel/sockets/shared_window.h"
#include "parallel/sockets/socket_meeting.h"

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

// The time that the news of an abort may take longer than the end of a connection.
constexpr auto kNewsGrace = std::chrono::seconds(2);

class SocketTransport final : public Transport {
 public:
  SocketTransport(std::shared_ptr<SocketWorld> world, std::vector<int> members, GroupId group)
      : world_(std::move(world)),
        members_(std::move(members)),
        deadline_(Clock::now() + world_->timeout),
        layout_(layout_of(*world_, members_)) {
    std::vector<TcpSocket> sockets = SocketMeeting{
        .gate = *world_->gate,
        .addresses = *world_->addresses,
        .world = world_->id,
        .rank = world_->rank,
        .group = group,
        .deadline = deadline_,
        .check = [this] {
          check_news("connecting");
        }}.connect(members_);
    share_windows(sockets);
    look_into_peers(sockets);
    for (TcpSocket& socket : sockets) streams_.emplace_back(std::move(socket));
  }

  const HostLayout& layout() const override { return layout_; }
  std::span<std::byte> window(int rank) const override {
    return windows_[static_cast<std::size_t>(rank)].bytes();
  }

  bool reads_peers() const override { return reads_peers_; }
  int read_from(int rank, const std::byte* address, std::span<std::byte> to) override {
    return read_memory_of(processes_[static_cast<std::size_t>(rank)], address, to);
  }

  void send(MessageSet set, MessageTag tag, int to, std::span<const std::byte> bytes) override {
    streams_[static_cast<std::size_t>(to)].send(set, tag, bytes);
  }
  void receive(MessageSet set, MessageTag tag, int from, std::span<std::byte> bytes) override {
    streams_[static_cast<std::size_t>(from)].receive(set, tag, bytes);
  }

  bool all_done(MessageSet set) override {
    bool done = true;
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
      MessageStream& stream = streams_[rank];
      if (!stream.has_work()) continue;
      make_progress(stream, members_[rank]);
      done = done && stream.pending(set) == 0;
    }
    return done;
  }
  bool is_pending(MessageSet set, int rank) const override {
    return streams_[static_cast<std::size_t>(rank)].pending(set) > 0;
  }
  PendingReceives pending_receives(MessageSet set) const override {
    PendingReceives pending;
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
      const int count = streams_[rank].pending_receives(set);
      pending.count += count;
      if (count > 0) pending.from = static_cast<int>(rank);
    }
    return pending;
  }
  void drop() override {
    for (MessageStream& stream : streams_) stream.drop();
  }

  void abort(const std::string& reason) override { world_->news->abort(reason); }
  bool is_aborted() override { return world_->news->is_aborted(); }
  std::string abort_reason() const override { return world_->news->reason(); }

  // The lowest rank of a part numbers its group.
  std::unique_ptr<Transport> split(int color, int key) override {
    struct Wish {
      std::int32_t color = 0;
      std::int32_t key = 0;
      std::uint32_t number = 0;
    };
    deadline_ = Clock::now() + world_->timeout;
    const Wish own = {color, key, world_->groups++};
    const std::vector<Wish> wishes = of_all(own);
    std::vector<int> part;  // ranks of this group
    for (int rank = 0; rank < layout_.size(); ++rank) {
      if (wishes[static_cast<std::size_t>(rank)].color == color) part.push_back(rank);
    }
    const auto leader = static_cast<std::size_t>(part.front());
    const GroupId group = SocketWorld::group_id(members_[leader], wishes[leader].number);
    std::ranges::stable_sort(part, {},
                             [&](int rank) { return wishes[static_cast<std::size_t>(rank)].key; });
    std::vector<int> members;
    for (const int rank : part) members.push_back(members_[static_cast<std::size_t>(rank)]);
    return make_socket_transport(world_, std::move(members), group);
  }

 private:
  static HostLayout layout_of(const SocketWorld& world, const std::vector<int>& members) {
    std::vector<int> hosts;
    for (const int member : members) hosts.push_back(world.addresses->host_of(member));
    return {hosts, static_cast<int>(std::ranges::find(members, world.rank) - members.begin())};
  }

  void make_progress(MessageStream& stream, int peer) {
    try {
      stream.make_progress();
    } catch (const CommError& error) {
      throw CommError(fmt::format("messages of rank {}: {}", peer, error.what()), "");
    }
    if (!stream.is_closed() || !stream.has_work() || is_aborted()) return;
    // If that rank has aborted, its reason is on its way here.
    if (!closed_at_) closed_at_ = Clock::now();
    if (Clock::now() - *closed_at_ < kNewsGrace) return;
    throw CommError(fmt::format("rank {} has left: its connection has ended", peer), "");
  }

  void check_news(const char* activity) {
    if (!is_aborted()) return;
    throw CommError(fmt::format("{} ranks was aborted: {}", activity, abort_reason()), "");
  }

  // Returns the values of all ranks of this group, by rank, as messages.
  template <typename T>
  std::vector<T> of_all(const T& own) {
    std::vector<T> values(members_.size(), own);
    for (int other = 0; other < layout_.size(); ++other) {
      if (other == layout_.rank()) continue;
      T& theirs = values[static_cast<std::size_t>(other)];
      receive(MessageSet::kCall, MessageTag::kCall, other,
              std::as_writable_bytes(std::span(&theirs, 1)));
      send(MessageSet::kCall, MessageTag::kCall, other, std::as_bytes(std::span(&own, 1)));
    }
    while (!all_done(MessageSet::kCall)) {
      check_news("splitting");
      if (Clock::now() > deadline_) {
        throw CommError(fmt::format("rank {} did not take part in splitting the ranks",
                                    pending_receives(MessageSet::kCall).from),
                        "");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return values;
  }

  // Does the same over connections that carry no messages yet.
  template <typename T>
  std::vector<T> of_all(const std::vector<TcpSocket>& sockets, const T& own) const {
    std::vector<T> values(sockets.size(), own);
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      if (!sockets[i].is_open()) continue;
      if (!sockets[i].send_all(std::as_bytes(std::span(&own, 1)), deadline_)) fail_without(i);
    }
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      if (!sockets[i].is_open()) continue;
      const auto theirs = std::as_writable_bytes(std::span(&values[i], 1));
      if (!sockets[i].receive_all(theirs, deadline_)) fail_without(i);
    }
    return values;
  }

  [[noreturn]] void fail_without(std::size_t rank) const {
    const std::string reason =
        fmt::format("rank {} has left while the ranks were making a communicator", members_[rank]);
    world_->news->abort(reason);
    throw CommError(world_->news->reason(), "");
  }

  void share_windows(const std::vector<TcpSocket>& sockets) {
    const std::vector<int>& locals = layout_.locals();
    const std::size_t bytes = window_bytes(layout_.size(), layout_.hosts() > 1);
    windows_.resize(members_.size());
    SharedWindow own(bytes);
    for (const int local : locals) {
      if (local == layout_.rank()) continue;
      const auto i = static_cast<std::size_t>(local);
      if (!own.give(sockets[i])) fail_without(i);
    }
    for (const int local : locals) {
      if (local == layout_.rank()) continue;
      const auto i = static_cast<std::size_t>(local);
      windows_[i] = SharedWindow::take(sockets[i], bytes, deadline_);
      if (windows_[i].bytes().empty()) fail_without(i);
    }
    own.end_giving();
    windows_[static_cast<std::size_t>(layout_.rank())] = std::move(own);
  }

  // Finds out whether each rank can read, in the others' memory, the value that they have put
  // there.
  void look_into_peers(const std::vector<TcpSocket>& sockets) {
    const std::uint64_t value = random_mark_value();
    bool finds_all = world_->reads_peers && layout_.hosts() == 1;
    for (const PeerMark& mark : of_all(sockets, mark_of(value))) {
      processes_.push_back(mark.process);
      finds_all = finds_all && can_read(mark);
    }
    // This also keeps `value` in place until all have looked.
    const std::vector<std::uint8_t> find_all =
        of_all(sockets, static_cast<std::uint8_t>(finds_all ? 1 : 0));
    reads_peers_ = std::ranges::find(find_all, 0) == find_all.end();
  }

  const std::shared_ptr<SocketWorld> world_;
  const std::vector<int> members_;  // ranks of the whole job, by rank of this group
  TcpDeadline deadline_;            // of the work that all ranks do together
  const HostLayout layout_;
  std::vector<SharedWindow> windows_;  // by rank; empty for ranks of other hosts
  std::vector<pid_t> processes_;       // by rank
  bool reads_peers_ = false;
  std::vector<MessageStream> streams_;    // by rank
  std::optional<TcpDeadline> closed_at_;  // when a connection with pending messages was found ended
};

}  // namespace

std::unique_ptr<Transport> make_socket_transport(std::shared_ptr<SocketWorld> world,
                                                 std::vector<int> members, GroupId group) {
  return std::make_unique<SocketTransport>(std::move(world), std::move(members), group);
}

}  // namespace terrace
