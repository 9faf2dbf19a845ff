// The paths that the build knows. They are in one source file, so that every other file of the
// tests compiles to the same bytes in any checkout and is found in the compiler's cache.
#pragma once

#include <string>

namespace terrace {

// Returns the path of the built program.
std::string program_path();

// Returns the path of mpirun, or an empty string if the build has no MPI.
std::string mpirun_path();

// Returns the path of the script that starts ranks with torchrun's variables.
std::string socket_ranks_path();

// Returns the path of README.md.
std::string readme_path();

}  // namespace terrace
