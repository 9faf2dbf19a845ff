#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "tests/programs/program_text.h"

// Prints the programs that the test of the fingerprints compares. tools/compare_programs.sh calls
// it.
namespace terrace {
namespace {

int show(std::span<char* const> arguments) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (first == "--names") {
    for (const std::string& name : case_names()) fmt::print("{}\n", name);
  } else if (first == "--fingerprints") {
    for (const std::string& name : case_names()) {
      fmt::print("{}\n", fingerprint_line(name, case_text(name)));
    }
  } else {
    const std::string text = case_text(first);
    if (text.empty()) {
      fmt::print(stderr,
                 "usage: show_programs --names | --fingerprints | CASE\nThere is no case '{}'.\n",
                 first);
      return EXIT_FAILURE;
    }
    fmt::print("{}", text);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace terrace

int main(int count, char** values) {
  return terrace::show(std::span(values, static_cast<std::size_t>(count)).subspan(1));
}
