#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.h"

namespace terrace {

// A fixed number of threads (a oneTBB arena) that share the iterations of a loop. One arena serves
// one calling thread at a time; the caller is one of the workers. Which worker runs which index is
// not determined, so no result may depend on it.
class WorkerArena {
 public:
  // `cpus` (OS indices): while they work, the threads, the caller too, run on these only. Empty:
  // wherever their masks let them. A hint: where the system refuses, they run anywhere. Behind a
  // loop a caller is where the maker of the arena was; loops of arenas with `cpus` do not nest.
  explicit WorkerArena(int threads, const std::vector<int>& cpus = std::vector<int>());
  ~WorkerArena();
  WorkerArena(const WorkerArena&) = delete;
  WorkerArena& operator=(const WorkerArena&) = delete;

  int threads() const;

  // Calls body(index, worker) for each index in [0, count). At most `workers_max` workers share
  // them, and `worker` is in [0, min(threads(), workers_max, count)). Two calls that run at the
  // same time have different workers: per-worker scratch is indexed by it. Returns when all have;
  // rethrows the first exception.
  void parallel_for(std::int64_t count, int workers_max,
                    FunctionRef<void(std::int64_t index, int worker)> body);
  // Lets all threads share.
  void parallel_for(std::int64_t count, FunctionRef<void(std::int64_t index, int worker)> body) {
    parallel_for(count, threads(), body);
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
