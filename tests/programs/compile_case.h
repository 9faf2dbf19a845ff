#pragma once

#include <string>
#include <vector>

#include "runtime/step/program.h"
#include "tests/programs/program_case.h"

namespace terrace {

// Compiles the step of a case as an engine would, but with a workspace of a fixed size: a real one
// depends on the processor.
Program compile_case(const ProgramCase& which);

// Compiles the step of a case whose places are planned, in the same way.
Program compile_plan(const PlanCase& which);

// Returns descriptions of the mistakes in a program. If there are none, it may run.
std::vector<std::string> problems_of(const Program& program);

}  // namespace terrace
