#pragma once

#include <string>
#include <vector>

#include "runtime/step/program.h"
#include "tests/programs/program_case.h"

namespace terrace {

// Compiles the step of a case as an engine would, but with a workspace of a fixed size: a real one
// depends on the processor.
Program compile_case(const ProgramCase& which);

// Likewise with places that are planned.
Program compile_plan(const PlanCase& which);

// What is wrong with a program, in words; nothing: it may run.
std::vector<std::string> problems_of(const Program& program);

}  // namespace terrace
