#include "tests/conformance/loopback_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "memory/host/host_memory.h"

namespace terrace {
namespace {

struct World {
  World(PeerReads its_reads, LoopbackTraffic* its_traffic)
      : peer_reads(its_reads), traffic(its_traffic) {}

  const PeerReads peer_reads;
  LoopbackTraffic* const traffic;
  std::atomic<bool> is_aborted{false};
  std::atomic<bool> has_failed{false};  // whether a rank's call has
  std::mutex mutex;
  std::string reason;  // guarded by mutex
  // The read mutexes of all transports; the list is guarded by mutex. A transport holds its own
  // while it reads another's buffers, so that no transport reads after an abort.
  std::vector<std::shared_ptr<std::mutex>> reads;
};

// A message that waits for its other side.
struct Posted {
  std::span<std::byte> target;        // for a receive
  std::span<const std::byte> source;  // for a send
  std::shared_ptr<bool> is_done;      // guarded by the hub's mutex
};

using Route = std::tuple<int, int, MessageTag>;  // from, to

// The state that the ranks of a group share.
struct Hub {
  Hub(std::shared_ptr<World> its_world, std::vector<int> its_hosts)
      : world(std::move(its_world)), hosts(std::move(its_hosts)), splits(hosts.size()) {
    const bool spans_hosts =
        std::ranges::adjacent_find(hosts, std::not_equal_to<>()) != hosts.end();
    const std::size_t bytes = window_bytes(static_cast<int>(hosts.size()), spans_hosts);
    for (std::size_t i = 0; i < hosts.size(); ++i) windows.emplace_back(bytes, HostMemoryOptions{});
  }

  struct Split {
    int color = 0;
    int key = 0;
    std::shared_ptr<Hub> made;
    int rank = 0;
  };

  const std::shared_ptr<World> world;
  const std::vector<int> hosts;  // by rank
  std::vector<HostMemory> windows;
  std::mutex mutex;
  std::map<Route, std::deque<Posted>> sends;     // guarded by mutex
  std::map<Route, std::deque<Posted>> receives;  // guarded by mutex
  std::condition_variable all_split;
  std::vector<Split> splits;  // guarded by mutex
  int splitting = 0;          // guarded by mutex; ranks that have come
  int rounds = 0;             // guarded by mutex; splits completed
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), layout_(hub_->hosts, rank) {
    const std::lock_guard lock(hub_->world->mutex);
    hub_->world->reads.push_back(read_);
  }

  const HostLayout& layout() const override { return layout_; }
  std::span<std::byte> window(int rank) const override {
    return hub_->windows[static_cast<std::size_t>(rank)].bytes();
  }

  bool reads_peers() const override {
    return hub_->world->peer_reads != PeerReads::kNone && layout_.hosts() == 1;
  }
  int read_from(int /*rank*/, const std::byte* address, std::span<std::byte> to) override {
    if (hub_->world->peer_reads == PeerReads::kFail) return EPERM;
    if (hub_->world->peer_reads == PeerReads::kAfterFailure) {
      abort("aborted in the middle of a read");
      hub_->world->has_failed.wait(false);
      std::memcpy(to.data(), address, to.size());
      return 0;
    }
    const std::lock_guard lock(*read_);
    if (hub_->world->is_aborted.load()) return ECANCELED;
    std::memcpy(to.data(), address, to.size());
    return 0;
  }

  void send(MessageSet set, MessageTag tag, int to, std::span<const std::byte> bytes) override {
    if (hub_->world->traffic != nullptr && tag == MessageTag::kPiece && host(to) != host(rank_)) {
      hub_->world->traffic->sent_by.at(static_cast<std::size_t>(host(rank_))) += bytes.size();
    }
    post(set, to, {rank_, to, tag}, {.target = {}, .source = bytes, .is_done = {}}, true);
  }
  void receive(MessageSet set, MessageTag tag, int from, std::span<std::byte> bytes) override {
    post(set, from, {from, rank_, tag}, {.target = bytes, .source = {}, .is_done = {}}, false);
  }
  bool all_done(MessageSet set) override {
    const std::lock_guard lock(hub_->mutex);
    auto& own = sets_[static_cast<std::size_t>(set)];
    std::erase_if(own, [](const Message& message) { return *message.is_done; });
    return own.empty();
  }
  bool is_pending(MessageSet set, int rank) const override {
    const auto& own = sets_[static_cast<std::size_t>(set)];
    return std::any_of(own.begin(), own.end(),
                       [rank](const Message& message) { return message.peer == rank; });
  }
  PendingReceives pending_receives(MessageSet set) const override {
    const std::lock_guard lock(hub_->mutex);
    PendingReceives pending;
    for (const Message& message : sets_[static_cast<std::size_t>(set)]) {
      if (!message.is_receive || *message.is_done) continue;
      ++pending.count;
      pending.from = message.peer;
    }
    return pending;
  }
  void drop() override {
    hub_->world->has_failed.store(true);
    hub_->world->has_failed.notify_all();
    const std::lock_guard lock(hub_->mutex);
    for (auto& [route, waiting] : hub_->sends) {
      if (std::get<0>(route) == rank_) waiting.clear();
    }
    for (auto& [route, waiting] : hub_->receives) {
      if (std::get<1>(route) == rank_) waiting.clear();
    }
    for (auto& own : sets_) own.clear();
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(hub_->world->mutex);
    if (hub_->world->is_aborted.load()) return;
    hub_->world->reason = reason;
    hub_->world->is_aborted.store(true);
    for (const auto& read : hub_->world->reads) const std::lock_guard ended(*read);
  }
  bool is_aborted() override { return hub_->world->is_aborted.load(); }
  std::string abort_reason() const override {
    const std::lock_guard lock(hub_->world->mutex);
    return hub_->world->reason;
  }

  std::unique_ptr<Transport> split(int color, int key) override {
    std::unique_lock lock(hub_->mutex);
    Hub::Split& own = hub_->splits[static_cast<std::size_t>(rank_)];
    own.color = color;
    own.key = key;
    const int round = hub_->rounds;
    if (++hub_->splitting == size()) {
      make_parts();
      hub_->splitting = 0;
      ++hub_->rounds;
      hub_->all_split.notify_all();
    }
    hub_->all_split.wait(lock, [&] { return hub_->rounds > round; });
    return std::make_unique<LoopbackTransport>(std::move(own.made), own.rank);
  }

 private:
  // A message that this rank has posted.
  struct Message {
    int peer = -1;
    bool is_receive = false;
    std::shared_ptr<bool> is_done;  // guarded by the hub's mutex
  };

  int size() const { return layout_.size(); }
  int host(int rank) const { return hub_->hosts[static_cast<std::size_t>(rank)]; }

  void post(MessageSet set, int peer, const Route& route, Posted message, bool is_send) {
    const std::lock_guard lock(hub_->mutex);
    message.is_done = std::make_shared<bool>(false);
    sets_[static_cast<std::size_t>(set)].push_back({peer, !is_send, message.is_done});
    auto& waiting = (is_send ? hub_->receives : hub_->sends)[route];
    if (waiting.empty()) {
      (is_send ? hub_->sends : hub_->receives)[route].push_back(message);
      return;
    }
    const Posted other = waiting.front();
    waiting.pop_front();
    const std::span<std::byte> target = is_send ? other.target : message.target;
    const std::span<const std::byte> source = is_send ? message.source : other.source;
    std::memcpy(target.data(), source.data(), std::min(target.size(), source.size()));
    *other.is_done = true;
    *message.is_done = true;
  }

  // Called with the hub's mutex held.
  void make_parts() {
    std::map<int, std::vector<std::pair<int, int>>> parts;  // color: (key, rank)
    for (int rank = 0; rank < size(); ++rank) {
      const Hub::Split& split = hub_->splits[static_cast<std::size_t>(rank)];
      parts[split.color].emplace_back(split.key, rank);
    }
    for (auto& [color, ranks] : parts) {
      std::sort(ranks.begin(), ranks.end());
      std::vector<int> hosts;
      for (const auto& [key, rank] : ranks) hosts.push_back(host(rank));
      const auto made = std::make_shared<Hub>(hub_->world, hosts);
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        Hub::Split& split = hub_->splits[static_cast<std::size_t>(ranks[i].second)];
        split.made = made;
        split.rank = static_cast<int>(i);
      }
    }
  }

  const std::shared_ptr<Hub> hub_;
  const int rank_;
  const std::shared_ptr<std::mutex> read_ = std::make_shared<std::mutex>();
  const HostLayout layout_;
  std::array<std::vector<Message>, 3> sets_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_loopback_transports(int ranks, int ranks_per_host,
                                                                 PeerReads reads,
                                                                 LoopbackTraffic* traffic) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / ranks_per_host);
  return make_loopback_transports(hosts, reads, traffic);
}

std::vector<std::unique_ptr<Transport>> make_loopback_transports(const std::vector<int>& hosts,
                                                                 PeerReads reads,
                                                                 LoopbackTraffic* traffic) {
  const auto hub = std::make_shared<Hub>(std::make_shared<World>(reads, traffic), hosts);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    transports.push_back(std::make_unique<LoopbackTransport>(hub, rank));
  }
  return transports;
}

}  // namespace terrace
