#include "parallel/mpi/mpi_session.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "parallel/mpi/peer_memory.h"
#include "parallel/mpi/staged_communicator.h"
#include "parallel/mpi/transport.h"

namespace terrace {
namespace {

constexpr std::size_t kReasonBytes = 1024;
constexpr std::size_t kSets = 3;

void check_mpi(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(fmt::format("{} failed: {}", operation,
                              std::string_view(text.data(), static_cast<std::size_t>(length))),
                  "");
}

// The time that a rank at its end waits for the others. It is long enough for ranks that have one
// more step of their own to do, and short compared with a job that hangs. After an abort, the ranks
// that are alive come at once.
constexpr auto kGrace = std::chrono::seconds(20);
constexpr auto kGraceAfterAbort = std::chrono::seconds(3);

// Waits for all ranks. `meet` begins a collective that waits for all of them. Returns false if
// `give_up` says so or the grace is over before all have come.
template <typename Meet, typename GiveUp>
bool wait_for_all(Meet meet, std::chrono::seconds grace, GiveUp give_up) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  if (give_up()) return false;
  MPI_Request request = MPI_REQUEST_NULL;
  if (meet(&request) != MPI_SUCCESS) return false;
  for (;;) {
    int all_here = 0;
    if (MPI_Test(&request, &all_here, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (all_here != 0) return true;
    if (give_up() || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// How a session ends, as recorded by its worlds.
struct SessionEnd {
  bool is_abort = false;
  // Whether messages to or from other hosts are left. MPI may still send from buffers, or receive
  // into buffers, that no longer exist.
  std::atomic<bool> leaves_messages{false};
};

// The state that all transports made together share: the news of an abort, and the objects that
// must be given back to MPI.
class MpiWorld {
 public:
  MpiWorld(MPI_Comm all, const MpiPlacement& placement, std::shared_ptr<SessionEnd> end)
      : placement_(placement), end_(std::move(end)) {
    check_mpi(MPI_Comm_dup(all, &control_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(control_, &rank_);
    MPI_Comm_size(control_, &size_);
  }

  // Gives windows and communicators back in the order in which all ranks made them, and only if all
  // ranks come to do so, because giving them back waits for the others. Otherwise they stay until
  // the process ends.
  ~MpiWorld() {
    const auto meet = [this](MPI_Request* request) { return MPI_Ibarrier(control_, request); };
    const bool all_came = wait_for_all(meet, kGrace, [this] { return is_aborted(); });
    end_->is_abort = is_aborted();
    if (!all_came) return;
    for (MPI_Win& window : windows_) {
      MPI_Win_unlock_all(window);
      MPI_Win_free(&window);
    }
    for (MPI_Comm& comm : comms_) MPI_Comm_free(&comm);
    MPI_Comm_free(&control_);
  }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  const MpiPlacement& placement() const { return placement_; }
  void leave_messages() { end_->leaves_messages.store(true); }
  void keep(MPI_Win window) { windows_.push_back(window); }
  void keep(MPI_Comm comm) { comms_.push_back(comm); }

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (is_aborted_.load()) return;
    set_reason(reason);
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(reason_.data(), static_cast<int>(kReasonBytes), MPI_CHAR, other, 0, control_,
                &request);
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
  }

  // May be called by any thread; one thread at a time looks for news.
  bool is_aborted() {
    if (is_aborted_.load()) return true;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || is_aborted_.load()) return is_aborted_.load();
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, 0, control_, &there, &status);
    if (there == 0) return false;
    std::array<char, kReasonBytes> text{};
    MPI_Recv(text.data(), static_cast<int>(kReasonBytes), MPI_CHAR, status.MPI_SOURCE, 0, control_,
             MPI_STATUS_IGNORE);
    text.back() = '\0';
    set_reason(text.data());
    return true;
  }

  std::string reason() const {
    const std::lock_guard lock(mutex_);
    return reason_.data();
  }

 private:
  // Called with mutex_ held.
  void set_reason(const std::string& reason) {
    const std::size_t length = std::min(reason.size(), kReasonBytes - 1);
    std::memcpy(reason_.data(), reason.data(), length);
    is_aborted_.store(true);
  }

  const MpiPlacement placement_;
  const std::shared_ptr<SessionEnd> end_;
  MPI_Comm control_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::atomic<bool> is_aborted_{false};
  mutable std::mutex mutex_;
  std::array<char, kReasonBytes> reason_{};  // written once, under mutex_; sent from here
  std::vector<MPI_Win> windows_;
  std::vector<MPI_Comm> comms_;
};

class MpiTransport final : public Transport {
 public:
  // Takes over `comm`. Called by all ranks of `comm`.
  MpiTransport(std::shared_ptr<MpiWorld> world, MPI_Comm comm)
      : world_(std::move(world)), comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    world_->keep(comm_);
    for (Posted& set : sets_) {
      set.requests.reserve(2 * static_cast<std::size_t>(size_));
      set.peers.reserve(2 * static_cast<std::size_t>(size_));
      set.are_receives.reserve(2 * static_cast<std::size_t>(size_));
    }
    share_windows();
    look_into_peers();
  }

  const HostLayout& layout() const override { return *layout_; }
  std::span<std::byte> window(int rank) const override {
    return windows_[static_cast<std::size_t>(rank)];
  }

  bool reads_peers() const override { return reads_peers_; }
  int read_from(int rank, const std::byte* address, std::span<std::byte> to) override {
    return read_memory_of(processes_[static_cast<std::size_t>(rank)], address, to);
  }

  void send(MessageSet set, MessageTag tag, int to, std::span<const std::byte> bytes) override {
    const auto start = tag == MessageTag::kPairCall ? MPI_Issend : MPI_Isend;
    check_mpi(start(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to,
                    static_cast<int>(tag), comm_, add(set, to, false)),
              "MPI_Isend");
  }
  void receive(MessageSet set, MessageTag tag, int from, std::span<std::byte> bytes) override {
    check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, from,
                        static_cast<int>(tag), comm_, add(set, from, true)),
              "MPI_Irecv");
  }

  bool all_done(MessageSet set) override {
    Posted& posted = posted_in(set);
    if (posted.requests.empty()) return true;
    // Tests them one by one, so that is_pending() knows which ranks are missing; MPI_Testall leaves
    // that open.
    bool done = true;
    for (MPI_Request& request : posted.requests) {
      if (request == MPI_REQUEST_NULL) continue;
      int is_complete = 0;
      check_mpi(MPI_Test(&request, &is_complete, MPI_STATUS_IGNORE), "a message");
      done = done && is_complete != 0;
    }
    if (done) posted.clear();
    return done;
  }

  bool is_pending(MessageSet set, int rank) const override {
    const Posted& posted = sets_[static_cast<std::size_t>(set)];
    for (std::size_t i = 0; i < posted.requests.size(); ++i) {
      if (posted.peers[i] == rank && posted.requests[i] != MPI_REQUEST_NULL) return true;
    }
    return false;
  }

  PendingReceives pending_receives(MessageSet set) const override {
    PendingReceives pending;
    const Posted& posted = sets_[static_cast<std::size_t>(set)];
    for (std::size_t i = 0; i < posted.requests.size(); ++i) {
      if (!posted.are_receives[i] || posted.requests[i] == MPI_REQUEST_NULL) continue;
      ++pending.count;
      pending.from = posted.peers[i];
    }
    return pending;
  }

  // Cancels the receives for which nothing has arrived. A send cannot be cancelled, and is left to
  // MPI.
  void drop() override {
    for (Posted& set : sets_) {
      for (std::size_t i = 0; i < set.requests.size(); ++i) {
        MPI_Request& request = set.requests[i];
        if (request == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&request);
        MPI_Request_free(&request);
        if (std::ranges::find(near_, set.peers[i]) == near_.end()) world_->leave_messages();
      }
      set.clear();
    }
  }

  void abort(const std::string& reason) override { world_->abort(reason); }
  bool is_aborted() override { return world_->is_aborted(); }
  std::string abort_reason() const override { return world_->reason(); }

  std::unique_ptr<Transport> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
    return std::make_unique<MpiTransport>(world_, part);
  }

 private:
  struct Posted {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    std::vector<bool> are_receives;
    void clear() {
      requests.clear();
      peers.clear();
      are_receives.clear();
    }
  };
  Posted& posted_in(MessageSet set) { return sets_[static_cast<std::size_t>(set)]; }
  MPI_Request* add(MessageSet set, int peer, bool is_receive) {
    Posted& posted = posted_in(set);
    posted.peers.push_back(peer);
    posted.are_receives.push_back(is_receive);
    posted.requests.push_back(MPI_REQUEST_NULL);
    return &posted.requests.back();
  }

  // Returns this group's rank numbers of the ranks of `part`.
  std::vector<int> ranks_of(MPI_Comm part) const {
    int count = 0;
    MPI_Comm_size(part, &count);
    std::vector<int> ranks(static_cast<std::size_t>(count));
    check_mpi(MPI_Allgather(&rank_, 1, MPI_INT, ranks.data(), 1, MPI_INT, part), "MPI_Allgather");
    return ranks;
  }

  // Returns a communicator of the ranks of this host, in the order of this group.
  MPI_Comm host_comm() {
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
    near_ = ranks_of(host);
    const int per_host = world_->placement().ranks_per_host;
    if (per_host == 0) return host;
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(host, world_->rank() / per_host, rank_, &part), "MPI_Comm_split");
    MPI_Comm_free(&host);
    return part;
  }

  // A host is known to the others by the lowest of its ranks.
  void find_layout(const std::vector<int>& locals) {
    const int lowest = *std::ranges::min_element(locals);
    std::vector<int> lowest_of(static_cast<std::size_t>(size_));
    check_mpi(MPI_Allgather(&lowest, 1, MPI_INT, lowest_of.data(), 1, MPI_INT, comm_),
              "MPI_Allgather");
    layout_.emplace(lowest_of, rank_);
  }

  void share_windows() {
    MPI_Comm host = host_comm();
    world_->keep(host);
    find_layout(ranks_of(host));
    const std::vector<int>& ranks = layout_->locals();
    const int locals = static_cast<int>(ranks.size());
    void* own = nullptr;
    MPI_Win window = MPI_WIN_NULL;
    const std::size_t bytes = window_bytes(size_, locals < size_);
    check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + kWindowAlignment), 1,
                                      MPI_INFO_NULL, host, static_cast<void*>(&own), &window),
              "MPI_Win_allocate_shared");
    world_->keep(window);
    // One epoch lasts for the window's life. Ranks signal each other by atomics, which order the
    // accesses to the rest of the window; on hosts with coherent caches MPI adds nothing to that.
    check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window), "MPI_Win_lock_all");
    std::memset(aligned(own), 0, bytes);  // also brings the pages to the processor that writes them
    check_mpi(MPI_Barrier(host), "MPI_Barrier");
    windows_.resize(static_cast<std::size_t>(size_));
    for (int i = 0; i < locals; ++i) {
      MPI_Aint size = 0;
      int unit = 0;
      void* base = nullptr;
      check_mpi(MPI_Win_shared_query(window, i, &size, &unit, static_cast<void*>(&base)),
                "MPI_Win_shared_query");
      const auto rank = static_cast<std::size_t>(ranks[static_cast<std::size_t>(i)]);
      windows_[rank] = {aligned(base), bytes};
    }
  }

  // Finds out whether each rank can read, in the others' memory, the value that they have put
  // there.
  void look_into_peers() {
    const std::uint64_t value = random_mark_value();
    const PeerMark own = mark_of(value);
    std::vector<PeerMark> marks(static_cast<std::size_t>(size_));
    check_mpi(MPI_Allgather(&own, sizeof(PeerMark), MPI_BYTE, marks.data(), sizeof(PeerMark),
                            MPI_BYTE, comm_),
              "MPI_Allgather");
    int finds_all = world_->placement().reads_peers && layout_->hosts() == 1 ? 1 : 0;
    for (const PeerMark& mark : marks) {
      processes_.push_back(mark.process);
      finds_all = finds_all != 0 && can_read(mark) ? 1 : 0;
    }
    // This also keeps `value` in place until all have looked.
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &finds_all, 1, MPI_INT, MPI_MIN, comm_), "MPI_Allreduce");
    reads_peers_ = finds_all != 0;
  }

  // MPI aligns a window as it likes. A window is mapped by whole pages, so every process finds the
  // same aligned place.
  static constexpr std::size_t kWindowAlignment = 64;
  static std::byte* aligned(void* base) {
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    return static_cast<std::byte*>(base) + (round_up(address, kWindowAlignment) - address);
  }

  const std::shared_ptr<MpiWorld> world_;
  const MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> near_;                      // on the same host, even where treated as on others
  std::optional<HostLayout> layout_;           // set by the constructor
  std::vector<std::span<std::byte>> windows_;  // by rank; empty for ranks of other hosts
  std::vector<pid_t> processes_;               // by rank
  bool reads_peers_ = false;
  std::array<Posted, kSets> sets_;
};

}  // namespace

bool is_mpi_built() { return true; }

struct MpiSession::State {
  int rank = 0;
  int size = 1;
  bool has_ended = false;
  // Lives as long as a world that outlives the session.
  std::shared_ptr<SessionEnd> end = std::make_shared<SessionEnd>();
};

MpiSession::MpiSession() : state_(std::make_unique<State>()) {
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    throw EnvironmentError("MPI cannot be initialised", "read the messages of mpirun");
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    throw EnvironmentError("this MPI does not allow calls from several threads",
                           "use an MPI with MPI_THREAD_MULTIPLE");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &state_->size);
}

MpiSession::~MpiSession() {
  if (!state_->has_ended) end(0);
  MPI_Finalize();
}

// Any MPI call may make progress on messages that were left behind, and their memory is gone by
// now. So in that case the only call is the one that ends the job, after a while in which the other
// ranks can report their own errors.
int MpiSession::end(int code) {
  state_->has_ended = true;
  const int failure = std::max(code, 1);
  if (state_->end->leaves_messages.load()) {
    std::this_thread::sleep_for(failure == 1 ? 2 * kGraceAfterAbort : kGraceAfterAbort);
    MPI_Abort(MPI_COMM_WORLD, failure);
  }
  const auto grace = state_->end->is_abort ? kGraceAfterAbort : kGrace;
  int largest = code;
  const auto meet = [&](MPI_Request* request) {
    return MPI_Iallreduce(&code, &largest, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, request);
  };
  if (!wait_for_all(meet, grace, [] { return false; })) MPI_Abort(MPI_COMM_WORLD, failure);
  return largest;
}

int MpiSession::rank() const { return state_->rank; }
int MpiSession::size() const { return state_->size; }

int MpiSession::hosts() const {
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  int rank_on_host = 0;
  MPI_Comm_rank(host, &rank_on_host);
  MPI_Comm_free(&host);
  const int is_first = rank_on_host == 0 ? 1 : 0;
  int hosts = 0;
  check_mpi(MPI_Allreduce(&is_first, &hosts, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
  return hosts;
}

// The standard does not say what follows the first comma, or what further lines hold, so both are
// cut off.
std::string MpiSession::library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

std::unique_ptr<Communicator> MpiSession::make_world(const std::string& name,
                                                     const CommunicatorOptions& options,
                                                     const MpiPlacement& placement) {
  const auto world = std::make_shared<MpiWorld>(MPI_COMM_WORLD, placement, state_->end);
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return std::make_unique<StagedCommunicator>(std::make_unique<MpiTransport>(world, comm), name,
                                              options);
}

void MpiSession::barrier() { check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }

}  // namespace terrace
