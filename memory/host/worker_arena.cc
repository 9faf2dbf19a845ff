#include "memory/host/worker_arena.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include <algorithm>
#include <atomic>

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

// One loop, on the caller's stack, which it leaves when all that joined are done.
struct Loop {
  Loop(FunctionRef<void(std::int64_t, int)> body_of_loop, std::int64_t index_count,
       std::int64_t chunk_size)
      : body(body_of_loop), count(index_count), chunk(chunk_size) {}
  FunctionRef<void(std::int64_t, int)> body;
  std::int64_t count;
  std::int64_t chunk;
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

// What oneTBB copies and calls on each thread that joins.
struct JoinLoop {
  Loop* loop;
  TERRACE_TSAN_UNSEEN_ void operator()(int) const {
    tell_acquire(loop);
    loop->work(tbb::this_task_arena::current_thread_index());
  }
};

// Confines threads while they are in an arena. oneTBB's own go from arena to arena.
class Confinement final : public tbb::task_scheduler_observer {
 public:
  Confinement(tbb::task_arena& arena, const std::vector<int>& cpus)
      : tbb::task_scheduler_observer(arena), cpus_(cpus), before_(cpus_of_thread()) {
    observe(true);
  }
  ~Confinement() override { observe(false); }
  Confinement(const Confinement&) = delete;
  Confinement& operator=(const Confinement&) = delete;

  void on_scheduler_entry(bool /*is_worker*/) override { confine_thread(cpus_); }
  void on_scheduler_exit(bool /*is_worker*/) override { confine_thread(before_); }

 private:
  const std::vector<int> cpus_;
  // Of the thread that made the arena. A thread of oneTBB cannot be asked: one that was started by
  // a confined thread has that one's mask.
  const std::vector<int> before_;
};

}  // namespace

class WorkerArena::Impl {
 public:
  Impl(int threads, const std::vector<int>& cpus)
      : threads_(threads),
        limit_(tbb::global_control::max_allowed_parallelism, kThreadsMax),
        arena_(threads, 1) {
    if (threads_ > 1) arena_.initialize();
    if (threads_ > 1 && !cpus.empty()) {
      confinement_ = std::make_unique<Confinement>(arena_, cpus);
    }
  }

  int threads() const { return threads_; }

  void parallel_for(std::int64_t count, FunctionRef<void(std::int64_t, int)> body) {
    const auto workers = static_cast<int>(std::min<std::int64_t>(threads_, count));
    Loop loop(body, count, std::max<std::int64_t>(1, count / (workers * kChunksPerWorker)));
    tell_release(&loop);
    arena_.execute(
        [&] { tbb::parallel_for(0, workers, JoinLoop{&loop}, tbb::simple_partitioner()); });
  }

 private:
  const int threads_;
  tbb::global_control limit_;
  tbb::task_arena arena_;
  std::unique_ptr<Confinement> confinement_;
};

WorkerArena::WorkerArena(int threads, const std::vector<int>& cpus) {
  TERRACE_CHECK_LE(1, threads);
  impl_ = std::make_unique<Impl>(threads, cpus);
}

WorkerArena::~WorkerArena() = default;

int WorkerArena::threads() const { return impl_->threads(); }

void WorkerArena::parallel_for(std::int64_t count, FunctionRef<void(std::int64_t, int)> body) {
  if (count <= 0) return;
  if (count == 1 || impl_->threads() == 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  impl_->parallel_for(count, body);
}

}  // namespace terrace
