#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

// The ranks of an MPI job (mpirun, srun), one process each. The header is there in every build; in
// one without MPI a session throws EnvironmentError.
namespace terrace {

// MPI was found when this was configured.
bool is_mpi_built();

struct MpiPlacement {
  // 0: ranks share memory where their processes can. Else every so many ranks are treated as a host
  // of their own, so that messages between hosts can be tested on one.
  int ranks_per_host = 0;
  // Whether ranks read each other's memory where all of a communicator are on one host and the
  // system allows it. Else what they exchange there goes through shared windows only.
  bool reads_peers = true;
};

// MPI in this process: at most one session at a time, and one in the life of the process.
//
// Lanes call from threads of their own, so MPI must give MPI_THREAD_MULTIPLE; there is no progress
// thread, as every call makes its own progress and a host's ranks meet in shared memory.
class MpiSession {
 public:
  // Throws EnvironmentError where MPI does not start, or is not safe with threads.
  MpiSession();
  // Ends it, if it has not.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  // Name and version: "Open MPI v4.1.4".
  static std::string library();
  // A communicator of all ranks, made by all of them in the same order; it and what is split off
  // end before the session.
  std::unique_ptr<Communicator> make_world(const std::string& name,
                                           const CommunicatorOptions& options = {},
                                           const MpiPlacement& placement = {});
  // All ranks, by MPI's own collectives: what benchmarks compare with. Its sums are fp32, bf16 (by
  // an operation of ours) and i32 only, in the library's order, of less than 2 GiB, and it waits
  // for ever.
  std::unique_ptr<Communicator> make_library_world(const std::string& name);
  // Waits for the other ranks' sessions to end too, and returns the largest of all ranks' `code`,
  // so that a job has one exit code. If they do not come (a rank failed and the others were not
  // told), ends the whole job by MPI_Abort with the code, so that the launcher does not wait for
  // ever and exits with an error. 1 is for ranks that others have ended: they are not the first to
  // do so. Once, when all communicators are gone.
  int end(int code);
  // Waits for all ranks, whatever happened to communicators.
  void barrier();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
