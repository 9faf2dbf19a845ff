#include "memory/host/worker_arena.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "memory/host/cpu_mask.h"

namespace terrace {
namespace {

// By default oneTBB provides no more workers than the machine has cores, over all arenas together.
// A global_control can raise this limit. If several exist, the smallest of their limits applies, so
// every arena uses this one, which is so large that it never matters.
constexpr std::size_t kThreadsMax = 256;

// Indices are handed out in chunks. Chunks are small enough to balance the load, and large enough
// that short bodies do not contend for the counter.
constexpr std::int64_t kChunksPerWorker = 16;

// oneTBB is not built with ThreadSanitizer. So ThreadSanitizer does not see that oneTBB orders the
// caller's writes before the bodies, and the bodies' writes before the caller's return. These two
// functions tell it so, with the loop's address as the key. They do nothing in other builds.
#if defined(__SANITIZE_THREAD__)
#define TERRACE_TSAN_UNSEEN_ __attribute__((no_sanitize("thread"), noinline))
void tell_release(void* key) { __tsan_release(key); }
void tell_acquire(void* key) { __tsan_acquire(key); }
#else
#define TERRACE_TSAN_UNSEEN_
void tell_release(void*) {}
void tell_acquire(void*) {}
#endif

// The processors on which the threads of an arena run. oneTBB's own threads go from arena to arena.
// A thread that joins an arena is moved to the arena's processors if the arena names any, or if
// another arena has moved the thread before. It stays on them until it joins the next arena.
class Confinement {
 public:
  // If `cpus` is empty, uses the processors of the calling thread, and leaves threads that no arena
  // has moved where they are.
  explicit Confinement(const std::vector<int>& cpus)
      : is_named_(!cpus.empty()),
        id_(next_id.fetch_add(1)),
        before_(cpus_of_thread()),
        cpus_(is_named_ ? cpus : before_) {}

  // Moves the calling thread to the arena's processors. Called by each thread that joins a loop.
  void move_here() const {
    if (moved_by == id_ || (moved_by == kNone && !is_named_)) return;
    confine_thread(cpus_);
    moved_by = id_;
  }
  // Moves the calling thread back after a loop. Called by the thread that called the loop, which is
  // not one of oneTBB's threads. Before the loop it had the processors of the arena's creator,
  // because the threads that the creator starts inherit them.
  void move_back() const {
    if (moved_by != id_) return;
    confine_thread(before_);
    moved_by = kNone;
  }

 private:
  static constexpr std::uint64_t kNone = 0;
  static inline std::atomic<std::uint64_t> next_id{kNone + 1};
  static inline thread_local std::uint64_t moved_by = kNone;

  const bool is_named_;
  const std::uint64_t id_;
  const std::vector<int> before_;
  const std::vector<int> cpus_;
};

// One loop. It lives on the caller's stack. The caller returns only when all threads that have
// joined the loop are done.
struct Loop {
  Loop(FunctionRef<void(std::int64_t, int)> body_of_loop, std::int64_t index_count,
       std::int64_t chunk_size, const Confinement& confinement_of_workers)
      : body(body_of_loop),
        count(index_count),
        chunk(chunk_size),
        confinement(confinement_of_workers) {}
  FunctionRef<void(std::int64_t, int)> body;
  std::int64_t count;
  std::int64_t chunk;
  const Confinement& confinement;
  std::atomic<std::int64_t> next{0};

  ~Loop() { tell_acquire(this); }

  void work(int worker) {
    try {
      for (;;) {
        const std::int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
        if (begin >= count) break;
        const std::int64_t end = std::min(begin + chunk, count);
        for (std::int64_t index = begin; index < end; ++index) body(index, worker);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      tell_release(this);
      throw;
    }
    tell_release(this);
  }
};

// The function object that oneTBB copies and calls, once for each worker of the loop. One thread
// may act as several workers, one after the other.
struct JoinLoop {
  Loop* loop;
  TERRACE_TSAN_UNSEEN_ void operator()(int worker) const {
    tell_acquire(loop);
    loop->confinement.move_here();
    loop->work(worker);
  }
};

// oneTBB's arenas, by their number of threads. They are kept until the process ends, and reused by
// the next user that wants the same number of threads. They are not destroyed because, for each
// arena that is destroyed shortly after its last loop, oneTBB 2021.8 may keep one more thread, up
// to kThreadsMax threads, and such threads look for work without ever pausing.
class KeptArenas {
 public:
  tbb::task_arena& take(int threads) {
    const std::scoped_lock lock(mutex_);
    Arenas& arenas = arenas_[threads];
    if (arenas.free.empty()) {
      arenas.free.reserve(arenas.all.size() + 1);  // so that give_back() need not allocate
      return *arenas.all.emplace_back(std::make_unique<tbb::task_arena>(threads, 1));
    }
    tbb::task_arena& arena = *arenas.free.back();
    arenas.free.pop_back();
    return arena;
  }
  void give_back(tbb::task_arena& arena, int threads) {
    const std::scoped_lock lock(mutex_);
    arenas_.at(threads).free.push_back(&arena);
  }

  // The arenas of the process, which all users share, as they share oneTBB's threads. Never
  // destroyed: when the process ends, a user of an arena may outlive the static objects.
  static KeptArenas& of_process() {
    static KeptArenas& arenas = *new KeptArenas;
    return arenas;
  }

 private:
  struct Arenas {
    std::vector<std::unique_ptr<tbb::task_arena>> all;
    std::vector<tbb::task_arena*> free;
  };
  std::mutex mutex_;
  std::map<int, Arenas> arenas_;
};

}  // namespace

class WorkerArena::Impl {
 public:
  Impl(int threads, const std::vector<int>& cpus)
      : threads_(threads),
        limit_(tbb::global_control::max_allowed_parallelism, kThreadsMax),
        arena_(KeptArenas::of_process().take(threads)),
        confinement_(cpus) {
    if (threads_ > 1) arena_.initialize();
  }
  ~Impl() { KeptArenas::of_process().give_back(arena_, threads_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  int threads() const { return threads_; }

  void parallel_for(std::int64_t count, int workers, FunctionRef<void(std::int64_t, int)> body) {
    Loop loop(body, count, std::max<std::int64_t>(1, count / (workers * kChunksPerWorker)),
              confinement_);
    const CallerReturns caller(confinement_);
    tell_release(&loop);
    // Makes the arena's threads round and treat denormals in the same way as the caller. Otherwise
    // they would use the settings of the thread that created the arena.
    tbb::task_group_context context(
        tbb::task_group_context::isolated,
        tbb::task_group_context::default_traits | tbb::task_group_context::fp_settings);
    arena_.execute([&] {
      tbb::parallel_for(0, workers, JoinLoop{&loop}, tbb::simple_partitioner(), context);
    });
  }

 private:
  struct CallerReturns {
    explicit CallerReturns(const Confinement& from) : confinement(from) {}
    ~CallerReturns() { confinement.move_back(); }
    CallerReturns(const CallerReturns&) = delete;
    CallerReturns& operator=(const CallerReturns&) = delete;
    const Confinement& confinement;
  };

  const int threads_;
  tbb::global_control limit_;
  tbb::task_arena& arena_;
  const Confinement confinement_;
};

WorkerArena::WorkerArena(int threads, const std::vector<int>& cpus) {
  TERRACE_CHECK_LE(1, threads);
  impl_ = std::make_unique<Impl>(threads, cpus);
}

WorkerArena::~WorkerArena() = default;

int WorkerArena::threads() const { return impl_->threads(); }

void WorkerArena::parallel_for(std::int64_t count, int workers_max,
                               FunctionRef<void(std::int64_t, int)> body) {
  TERRACE_CHECK_LE(1, workers_max);
  if (count <= 0) return;
  const auto workers =
      static_cast<int>(std::min<std::int64_t>(std::min(impl_->threads(), workers_max), count));
  if (workers == 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  impl_->parallel_for(count, workers, body);
}

}  // namespace terrace
