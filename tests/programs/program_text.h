#pragma once

#include <string>
#include <vector>

#include "runtime/step/program.h"
#include "tests/programs/program_case.h"

// A compiled program in words that are the tests' own, so that what the product calls things may
// change: what runs on which lane, which bytes of which tier it reads and writes, what it waits
// for, what it costs. Names and numbers of buffers, roles and names of steps are not in it.
namespace terrace {

// A line for each tier, then for each op its own line, its accesses in order of place, and the ops
// that it waits for, counted from itself; an apostrophe marks those of the step before.
std::string program_text(const Program& program);

// What tells the kinds and the lanes of ops apart in a text, such as "\nforward on " and
// " on upload:".
std::vector<std::string> all_words();

// The names of all cases, drawn and planned, in the order of the kept file.
std::vector<std::string> case_names();
// The program of a case, as text. An unknown name: empty.
std::string case_text(const std::string& name);
// The line of the kept file for a case: its name and the hash of its text.
std::string fingerprint_line(const std::string& name, const std::string& text);

}  // namespace terrace
