#pragma once

#include <exception>
#include <string>

namespace terrace {

// Returns whether Terrace throws this failure knowingly: it is an Error, or memory was refused.
// Anything else that ends a command is a defect of Terrace, because somebody should have caught it.
bool is_foreseen(const std::exception& failure);

// Returns the name of an exception's type, "std::out_of_range". For a refusal by the system it adds
// the text of errno, and the paths if it is about files.
std::string kind_of_failure(const std::exception& failure);

// Returns what to tell users and other ranks about a failure: the text of a foreseen one, or, for
// any other, that it is a defect of Terrace and of which kind. The text inside an unforeseen
// exception is left out: it comes from a library, and helps only those who wrote the code.
std::string failure_text(const std::exception& failure);

}  // namespace terrace
