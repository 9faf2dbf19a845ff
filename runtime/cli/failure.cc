#include "runtime/cli/failure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "base/error.h"
#include "base/failure_text.h"
#include "runtime/cli/standard_output.h"

namespace terrace {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitDoesNotFit = 3;
constexpr int kExitEnvironment = 4;
constexpr int kExitCorrupt = 5;
constexpr int kExitNotFinite = 6;

std::string defect_text(const std::exception& error, std::string_view command) {
  const auto* const known = dynamic_cast<const UnforeseenFailure*>(&error);
  const std::string kind = known == nullptr ? kind_of_failure(error) : known->kind();
  const std::string doing = known == nullptr ? "" : fmt::format(" while {}", known->doing());
  return fmt::format(
      "a defect of Terrace ended {}{}: no code handles an unexpected {}; please report it with "
      "this line, the whole command line, and the output of terrace --version and terrace doctor",
      command, doing, kind);
}

std::string text_of(const std::exception& error, std::string_view command) {
  if (!is_foreseen(error)) return defect_text(error, command);
  const std::string text = failure_text(error);
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return text;
  return text + "; lower --host-memory or --device-memory, or raise the limit (ulimit -v, cgroup)";
}

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return kExitUsage;
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr) return kExitDoesNotFit;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kExitDoesNotFit;
  if (dynamic_cast<const EnvironmentError*>(&error) != nullptr) return kExitEnvironment;
  if (dynamic_cast<const CorruptData*>(&error) != nullptr) return kExitCorrupt;
  if (dynamic_cast<const NotFinite*>(&error) != nullptr) return kExitNotFinite;
  return kExitFailed;
}

}  // namespace

UnforeseenFailure::UnforeseenFailure(const std::exception& failure, std::string doing)
    : kind_(kind_of_failure(failure)), doing_(std::move(doing)) {}

int report_failure(const std::exception& error, std::string_view command, const ErrorSink& sink) {
  const char* const label = takes_colours(STDERR_FILENO) ? "\x1b[1;31merror:\x1b[0m" : "error:";
  sink(fmt::format("terrace: {} {}\n", label, text_of(error, command)));
  return exit_code_of(error);
}

}  // namespace terrace
