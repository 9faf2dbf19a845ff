#pragma once

namespace terrace {

// The heap while steps are planned. Planning makes and drops large lists again and again; by
// default glibc gives the memory of each back to the system, and a quarter of the time goes into
// getting it again. While such an object lives memory is kept, and all that is free is given back
// at its end. It works on the whole process; objects on several threads are no harm.
class PlanningHeap {
 public:
  PlanningHeap();
  ~PlanningHeap();
  PlanningHeap(const PlanningHeap&) = delete;
  PlanningHeap& operator=(const PlanningHeap&) = delete;
};

}  // namespace terrace
