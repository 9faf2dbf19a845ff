#pragma once

#include <string>
#include <vector>

#include "runtime/step/program.h"
#include "tests/programs/program_case.h"

// A compiled program in words of the tests' own, so that the product may rename things: which op
// runs on which lane, which bytes of which tier it reads and writes, which ops it waits for, and
// its cost. The text does not contain the names and numbers of buffers, the roles, and the names of
// steps.
namespace terrace {

// Returns a line for each tier; then, for each op, its own line, its accesses in order of place,
// and the ops that it waits for, counted from itself. An apostrophe marks ops of the step before.
std::string program_text(const Program& program);

// Returns the words that tell the kinds and the lanes of ops apart in a text, such as
// "\nforward on " and " on upload:".
std::vector<std::string> all_words();

// Returns the names of all cases, drawn and planned, in the order of the kept file.
std::vector<std::string> case_names();
// Returns the program of a case as text, or an empty text for an unknown name.
std::string case_text(const std::string& name);
// Returns the line of the kept file for a case: its name and the hash of its text.
std::string fingerprint_line(const std::string& name, const std::string& text);

}  // namespace terrace
