#include "tests/e2e/checkout_paths.h"

namespace terrace {

std::string program_path() { return TERRACE_PROGRAM; }

std::string mpirun_path() { return TERRACE_MPIRUN; }

std::string socket_ranks_path() { return TERRACE_SOCKET_RANKS; }

std::string readme_path() { return TERRACE_README; }

}  // namespace terrace
