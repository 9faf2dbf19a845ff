#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.h"

namespace terrace {

// A fixed number of threads (a oneTBB arena) that share the iterations of a loop. One arena serves
// one calling thread at a time, and the caller is one of the workers. Any worker may run any index,
// so results must not depend on which worker runs which index.
class WorkerArena {
 public:
  // While they work, the threads, including the caller, run only on the processors `cpus` (OS
  // indices). If `cpus` is empty, they run wherever their masks allow. This is a hint: if the
  // system refuses, they run anywhere. After a loop, the caller runs on the processors that the
  // thread which created the arena could use. Loops of arenas with `cpus` must not be nested.
  explicit WorkerArena(int threads, const std::vector<int>& cpus = std::vector<int>());
  ~WorkerArena();
  WorkerArena(const WorkerArena&) = delete;
  WorkerArena& operator=(const WorkerArena&) = delete;

  int threads() const;

  // Calls body(index, worker) for each index in [0, count). At most `workers_max` workers share the
  // indices, and `worker` is in [0, min(threads(), workers_max, count)). Two calls that run at the
  // same time have different values of `worker`, so `worker` can be used to index per-worker
  // scratch. Returns when all calls have returned; rethrows the first exception.
  void parallel_for(std::int64_t count, int workers_max,
                    FunctionRef<void(std::int64_t index, int worker)> body);
  // Does the same with all threads as workers.
  void parallel_for(std::int64_t count, FunctionRef<void(std::int64_t index, int worker)> body) {
    parallel_for(count, threads(), body);
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
