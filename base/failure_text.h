#pragma once

#include <exception>
#include <string>

namespace terrace {

// Returns whether Terrace throws it knowingly: it is an Error, or memory was refused. Anything else
// that ends a command is a defect of Terrace, because somebody should have caught it.
bool is_foreseen(const std::exception& failure);

// Returns the name of an exception's type, "std::out_of_range". Of what the system refused also
// says what that was: the text of errno, and the paths.
std::string kind_of_failure(const std::exception& failure);

// Returns what to tell users and other ranks of a failure: the text of a foreseen one, and that
// another one is a defect of Terrace, of which kind. What a library says inside an unforeseen
// exception helps nobody who has not written the code, and is left out.
std::string failure_text(const std::exception& failure);

}  // namespace terrace
