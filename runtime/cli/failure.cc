#include "runtime/cli/failure.h"

#include <fmt/format.h>

#include <new>
#include <string>

#include "base/error.h"

namespace terrace {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitDoesNotFit = 3;
constexpr int kExitEnvironment = 4;
constexpr int kExitCorrupt = 5;
constexpr int kExitNotFinite = 6;

std::string text_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "the system has no memory left outside the tiers' budgets; lower --host-memory or "
         "--device-memory, or raise the limit (ulimit -v, cgroup)";
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

int report_failure(const std::exception& error, const ErrorSink& sink) {
  sink(fmt::format("terrace: error: {}\n", text_of(error)));
  return exit_code_of(error);
}

}  // namespace terrace
