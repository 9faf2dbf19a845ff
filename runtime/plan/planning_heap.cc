#include "runtime/plan/planning_heap.h"

#include <malloc.h>

namespace terrace {
namespace {

constexpr int kUsualBytes = 128 << 10;  // glibc's, before it has learned anything
constexpr int kKeptBytes = 1 << 30;

void keep(int bytes) {
  mallopt(M_MMAP_THRESHOLD, bytes);
  mallopt(M_TRIM_THRESHOLD, bytes);
}

}  // namespace

PlanningHeap::PlanningHeap() { keep(kKeptBytes); }

PlanningHeap::~PlanningHeap() {
  keep(kUsualBytes);
  malloc_trim(0);
}

}  // namespace terrace
