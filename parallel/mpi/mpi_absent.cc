#include "base/error.h"
#include "parallel/mpi/mpi_session.h"

// For builds without MPI. In a build with MPI this file is empty.
#ifndef TERRACE_MPI
namespace terrace {

bool is_mpi_built() { return false; }

struct MpiSession::State {};

MpiSession::MpiSession() {
  throw EnvironmentError(
      "this process was started as a rank of an MPI job, but Terrace was built without MPI",
      "install MPI (libopenmpi-dev on Debian and Ubuntu), then configure and build again");
}

MpiSession::~MpiSession() = default;
int MpiSession::end(int code) { return code; }
int MpiSession::rank() const { return 0; }
int MpiSession::size() const { return 1; }
int MpiSession::hosts() const { return 1; }
std::string MpiSession::library() { return "none"; }
void MpiSession::barrier() {}

std::unique_ptr<Communicator> MpiSession::make_world(const std::string& /*name*/,
                                                     const CommunicatorOptions& /*options*/,
                                                     const MpiPlacement& /*placement*/) {
  return nullptr;
}

std::unique_ptr<Communicator> MpiSession::make_library_world(const std::string& /*name*/) {
  return nullptr;
}

}  // namespace terrace
#endif
