#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

// The ranks of an MPI job (mpirun, srun), one process each. Every build has this header; in a build
// without MPI a session throws EnvironmentError.
namespace terrace {

// Returns whether MPI was found when this build was configured.
bool is_mpi_built();

struct MpiPlacement {
  // 0: ranks share memory where their processes can. Otherwise every group of this many ranks is
  // treated as a host of its own, so that messages between hosts can be tested on one host.
  int ranks_per_host = 0;
  // Whether ranks read each other's memory where all ranks of a communicator are on one host and
  // the system allows it. Otherwise they exchange data there only through shared windows.
  bool reads_peers = true;
};

// MPI in this process: at most one session at a time, and one in the life of the process.
//
// Lanes call from threads of their own, so MPI must give MPI_THREAD_MULTIPLE. There is no progress
// thread: every call makes its own progress, and the ranks of a host meet in shared memory.
class MpiSession {
 public:
  // Throws EnvironmentError if MPI does not start, or is not safe to use from several threads.
  MpiSession();
  // Ends the session, if end() has not done so.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  // Returns how many hosts the ranks are on. All ranks call it.
  int hosts() const;
  // Returns the library's name and version, e.g. "Open MPI v4.1.4".
  static std::string library();
  // Makes a communicator of all ranks. All ranks make their communicators in the same order. Each,
  // with everything split off from it, ends before the session.
  std::unique_ptr<Communicator> make_world(const std::string& name,
                                           const CommunicatorOptions& options = {},
                                           const MpiPlacement& placement = {});
  // Makes a communicator of all ranks that uses MPI's own collectives, for benchmarks to compare
  // with. Its sums are for fp32, bf16 (by an operation of ours) and i32 only, in the library's
  // order, and below 2 GiB. It has no timeout.
  std::unique_ptr<Communicator> make_library_world(const std::string& name);
  // Waits for the other ranks' sessions to end too, and returns the largest `code` of all ranks, so
  // that a job has one exit code. If the others do not come (a rank failed and they were not told),
  // ends the whole job by MPI_Abort with the code, so that the launcher does not wait for ever and
  // exits with an error. Code 1 is for ranks that others have ended: they are not the first to call
  // MPI_Abort. Called once, when all communicators are gone.
  int end(int code);
  // Waits for all ranks, whatever has happened to communicators.
  void barrier();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
