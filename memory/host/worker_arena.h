#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.h"

namespace terrace {

// A fixed number of threads (a oneTBB arena) that share the iterations of a loop. One arena serves
// one calling thread at a time, and the caller is one of the workers. It is not determined which
// worker runs which index, so no result may depend on it.
class WorkerArena {
 public:
  // `cpus` (OS indices): while they work, the threads, including the caller, run on these only. If
  // empty, they run wherever their masks let them. This is a hint: where the system refuses, they
  // run anywhere. After a loop, the caller runs where the maker of the arena did. Loops of arenas
  // with `cpus` do not nest.
  explicit WorkerArena(int threads, const std::vector<int>& cpus = std::vector<int>());
  ~WorkerArena();
  WorkerArena(const WorkerArena&) = delete;
  WorkerArena& operator=(const WorkerArena&) = delete;

  int threads() const;

  // Calls body(index, worker) for each index in [0, count). At most `workers_max` workers share the
  // indices, and `worker` is in [0, min(threads(), workers_max, count)). Two calls that run at the
  // same time have different workers, so per-worker scratch is indexed by `worker`. Returns when
  // all calls have returned; rethrows the first exception.
  void parallel_for(std::int64_t count, int workers_max,
                    FunctionRef<void(std::int64_t index, int worker)> body);
  // Lets all threads share the indices.
  void parallel_for(std::int64_t count, FunctionRef<void(std::int64_t index, int worker)> body) {
    parallel_for(count, threads(), body);
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
