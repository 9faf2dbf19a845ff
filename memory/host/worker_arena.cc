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

// oneTBB lends out no more workers than the machine has cores, all arenas together. The limit is
// the smallest of those alive, so every arena states the same one, and it is out of the way.
constexpr std::size_t kThreadsMax = 256;

// Indices are handed out in chunks: small enough to even out, large enough that short bodies do not
// fight over the counter.
constexpr std::int64_t kChunksPerWorker = 16;

// ThreadSanitizer does not see how oneTBB, which is not built with it, orders the caller's writes
// before the bodies and the bodies' writes before the caller's return. These two tell it; they are
// keyed by the loop's address and do nothing in other builds.
#if defined(__SANITIZE_THREAD__)
#define TERRACE_TSAN_UNSEEN_ __attribute__((no_sanitize("thread"), noinline))
void tell_release(void* key) { __tsan_release(key); }
void tell_acquire(void* key) { __tsan_acquire(key); }
#else
#define TERRACE_TSAN_UNSEEN_
void tell_release(void*) {}
void tell_acquire(void*) {}
#endif

// Where the threads of an arena run. oneTBB's own threads go from arena to arena: one that comes to
// an arena is moved when it was moved by another arena before, and stays so until the next one.
class Confinement {
 public:
  // No processors: those of the calling thread, and threads that no arena has moved are let be.
  explicit Confinement(const std::vector<int>& cpus)
      : is_named_(!cpus.empty()),
        id_(next_id.fetch_add(1)),
        before_(cpus_of_thread()),
        cpus_(is_named_ ? cpus : before_) {}

  // For each thread that joins a loop.
  void move_here() const {
    if (moved_by == id_ || (moved_by == kNone && !is_named_)) return;
    confine_thread(cpus_);
    moved_by = id_;
  }
  // For the caller of a loop, which is no thread of oneTBB: it had the processors of the arena's
  // maker, whose threads inherit them.
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

// One loop, on the caller's stack, which it leaves when all that joined are done.
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

// What oneTBB copies and calls, once for each worker of the loop. A thread may be several workers,
// one after the other.
struct JoinLoop {
  Loop* loop;
  TERRACE_TSAN_UNSEEN_ void operator()(int worker) const {
    tell_acquire(loop);
    loop->confinement.move_here();
    loop->work(worker);
  }
};

// oneTBB's arenas by their number of threads. They are kept for the next that wants as many, to the
// end of the process: with each arena that goes shortly after its last loop, oneTBB 2021.8 may keep
// one thread more, up to kThreadsMax of them, and those look for work without a pause.
class KeptArenas {
 public:
  tbb::task_arena& take(int threads) {
    const std::scoped_lock lock(mutex_);
    Arenas& arenas = arenas_[threads];
    if (arenas.free.empty()) {
      arenas.free.reserve(arenas.all.size() + 1);  // so that give_back() allocates nothing
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

  // Of the whole process, as oneTBB's threads are. Never destroyed: who has an arena may outlive
  // the static objects of a process that ends.
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
    // Its threads round, and treat denormals, as the caller does; else they would do so as whoever
    // has made the arena.
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
