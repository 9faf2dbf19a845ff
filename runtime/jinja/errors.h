#pragma once

#include <stdexcept>
#include <string>

// The two ways in which a template fails. Both say what is wrong with the template or with the
// values; the caller, who knows where they come from, adds the file and the remedy.
namespace terrace::jinja {

// The text of a template is not one that is understood.
class SyntaxError : public std::runtime_error {
 public:
  SyntaxError(const std::string& what, int line) : std::runtime_error(what), line_(line) {}
  int line() const { return line_; }  // counted from 1

 private:
  int line_;
};

// Rendering stopped: the template refused the values by raise_exception(), did something with a
// value that it does not allow, or went over a limit.
class RenderError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace terrace::jinja
