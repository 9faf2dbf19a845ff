#include "tests/tidy/source_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

#include "tests/tidy/function_lengths.h"
#include "tests/tidy/parameter_counts.h"
#include "tests/tidy/source_text.h"

namespace terrace::tidy {
namespace {

constexpr int kFunctionLinesMax = 70;
constexpr int kFileLinesMax = 600;
constexpr std::size_t kLineColumnsMax = 100;
constexpr int kParametersMax = 5;

// Functions with more parameters, because an interface of others requires them.
struct ForeignSignature {
  std::string_view path;
  std::string_view function;
};
constexpr auto kForeignSignatures = std::to_array<ForeignSignature>({
    // It replaces the C library's mmap, to count what a step allocates.
    {"tests/runtime/engine/step_allocation_test.cc", "mmap"},
});

// The words are split in two so that this file does not contain what it looks for. They are matched
// without regard to case.
constexpr auto kUnfinishedWords =
    std::to_array<std::string_view>({"to"
                                     "do",
                                     "fix"
                                     "me",
                                     "x"
                                     "xx",
                                     "ha"
                                     "ck",
                                     "place"
                                     "holder",
                                     "place"
                                     "holders"});
constexpr auto kUnfinishedPhrases =
    std::to_array<std::string_view>({"for "
                                     "now",
                                     "not imple"
                                     "mented",
                                     "unimple"
                                     "mented"});

constexpr auto kPrintingCalls = std::to_array<std::string_view>(
    {"printf", "fprintf", "vprintf", "vfprintf", "puts", "putchar", "perror"});
constexpr auto kPrintingNames = std::to_array<std::string_view>(
    {"std::cout", "std::cerr", "std::clog", "fmt::print", "fmt::println", "stdout", "stderr"});
constexpr auto kPrintingPlaces = std::to_array<std::string_view>(
    {"runtime/cli/", "bench/", "tools/", "examples/", "tests/", "base/check.cc"});

// Code that another trainer embeds. Its messages must not name flags of the command line.
constexpr auto kLibraryPlaces = std::to_array<std::string_view>(
    {"runtime/step/", "runtime/plan/", "runtime/engine/", "runtime/session/", "runtime/capi/",
     "runtime/model/tensor_split.", "runtime/model/trainable.", "runtime/model/option_names."});

constexpr auto kEmptyNames = std::to_array<std::string_view>(
    {"util", "utils", "utility", "utilities", "common", "helper", "helpers", "misc"});

bool begins_with_one_of(std::string_view path, std::span<const std::string_view> places) {
  return std::ranges::any_of(places,
                             [&](std::string_view place) { return path.starts_with(place); });
}

class Rules {
 public:
  Rules(std::string_view path, std::string_view text) : path_(path), text_(text) {}

  Violations run() {
    check_lines();
    check_length();
    if (is_cpp()) check_cpp();
    return std::move(found_);
  }

 private:
  bool is_header() const { return path_.ends_with(".h") || path_.ends_with(".cuh"); }
  bool is_cpp() const { return is_header() || path_.ends_with(".cc") || path_.ends_with(".cu"); }

  void add(int line, std::string what) {
    found_.push_back({std::string(path_), line, std::move(what)});
  }

  void check_lines() {
    int number = 0;
    for (const std::string_view line : split_lines(text_)) {
      ++number;
      if (is_cpp() && line.size() > kLineColumnsMax) {
        add(number, fmt::format("has {} columns; {} are allowed", line.size(), kLineColumnsMax));
      }
      check_characters(number, line);
      check_unfinished(number, line);
    }
  }

  void check_characters(int number, std::string_view line) {
    const auto odd = std::find_if(line.begin(), line.end(), [](char c) {
      return static_cast<unsigned char>(c) >= 0x7f || (static_cast<unsigned char>(c) < 0x20);
    });
    if (odd == line.end()) return;
    add(number, fmt::format("has the byte {:#04x}; only printable ASCII is allowed",
                            static_cast<unsigned char>(*odd)));
  }

  void check_unfinished(int number, std::string_view line) {
    const std::string low = lower(line);
    for (const std::string_view word : kUnfinishedWords) {
      if (has_word(low, word)) add(number, fmt::format("says \"{}\": finish it", word));
    }
    for (const std::string_view phrase : kUnfinishedPhrases) {
      if (low.find(phrase) != std::string::npos) {
        add(number, fmt::format("says \"{}\": finish it", phrase));
      }
    }
  }

  void check_length() {
    const int lines = static_cast<int>(split_lines(text_).size());
    if (lines > kFileLinesMax) {
      add(kFileLinesMax + 1, fmt::format("has {} lines; {} are allowed", lines, kFileLinesMax));
    }
    if (!text_.empty() && !text_.ends_with('\n')) add(lines, "does not end with a newline");
  }

  void check_cpp() {
    const std::string code = blank_comments_and_literals(text_);
    if (is_header()) check_guard(code);
    check_functions();
    check_parameters();
    int number = 0;
    for (const std::string_view line : split_lines(code)) check_code_line(++number, line);
    if (begins_with_one_of(path_, kLibraryPlaces)) check_messages(code);
  }

  // Looks for flags in literals: there the text without comments has characters, and the code has
  // spaces.
  void check_messages(std::string_view code) {
    const std::string text = blank_comments(text_);
    int line = 1;
    for (std::size_t i = 0; i + 2 < text.size(); ++i) {
      if (text[i] == '\n') ++line;
      const bool is_flag = text[i] == '-' && text[i + 1] == '-' && code[i] == ' ' &&
                           std::islower(static_cast<unsigned char>(text[i + 2])) != 0;
      if (is_flag) add(line, "names a flag of the command line: name the Option");
    }
  }

  void check_guard(std::string_view code) {
    for (const std::string_view line : split_lines(code)) {
      if (trim(line).empty()) continue;
      if (trim(line) == "#pragma once") return;
      break;
    }
    add(1, "does not begin with #pragma once");
  }

  void check_functions() {
    for (const FunctionExtent& function : function_extents(text_)) {
      if (function.lines() <= kFunctionLinesMax) continue;
      add(function.first_line, fmt::format("begins a function of {} lines; {} are allowed",
                                           function.lines(), kFunctionLinesMax));
    }
  }

  void check_parameters() {
    for (const ParameterList& list : parameter_lists(text_)) {
      if (list.parameters <= kParametersMax || is_foreign(list.name)) continue;
      add(list.line, fmt::format("{} has {} parameters; {} are allowed: make a struct of some",
                                 list.name, list.parameters, kParametersMax));
    }
  }

  bool is_foreign(std::string_view function) const {
    return std::ranges::any_of(kForeignSignatures, [&](const ForeignSignature& one) {
      return one.path == path_ && one.function == function;
    });
  }

  void check_code_line(int number, std::string_view line) {
    if (calls(line, "assert")) add(number, "calls assert; use TERRACE_CHECK or a typed exception");
    if (may_print()) return;
    for (const std::string_view name : kPrintingCalls) {
      if (calls(line, name)) add(number, fmt::format("calls {}: libraries never print", name));
    }
    for (const std::string_view name : kPrintingNames) {
      if (has_word(line, name)) add(number, fmt::format("uses {}: libraries never print", name));
    }
  }

  bool may_print() const { return begins_with_one_of(path_, kPrintingPlaces); }

  static bool calls(std::string_view line, std::string_view name) {
    return has_word(line, name) && line.find(fmt::format("{}(", name)) != std::string_view::npos;
  }

  std::string_view path_;
  std::string_view text_;
  Violations found_;
};

bool is_snake_case(std::string_view name) {
  return !name.empty() && std::islower(static_cast<unsigned char>(name.front())) != 0 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           const auto u = static_cast<unsigned char>(c);
           return std::islower(u) != 0 || std::isdigit(u) != 0 || c == '_';
         });
}

std::string_view last_component(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool says_nothing(std::string_view name) {
  return std::find(kEmptyNames.begin(), kEmptyNames.end(), name) != kEmptyNames.end();
}

}  // namespace

Violations check_source(std::string_view path, std::string_view text) {
  return Rules(path, text).run();
}

Violations check_names(const std::vector<std::string>& folders,
                       const std::vector<std::string>& files) {
  Violations found;
  for (const std::string& folder : folders) {
    if (!says_nothing(last_component(folder))) continue;
    found.push_back({folder, 1, "is a folder whose name says nothing; name the concept"});
  }
  for (const std::string& file : files) {
    const std::string_view name = last_component(file);
    const std::string_view stem = name.substr(0, name.rfind('.'));
    if (!is_snake_case(stem)) found.push_back({file, 1, "is not named in snake_case"});
    if (says_nothing(stem)) found.push_back({file, 1, "has a name that says nothing"});
  }
  return found;
}

}  // namespace terrace::tidy
