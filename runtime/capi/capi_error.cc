#include "runtime/capi/capi_error.h"

#include <cstdio>
#include <new>

#include "base/failure_text.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/session/session_error.h"

namespace terrace {
namespace {

// The text of a report. It neither allocates nor has a destructor, so it can be used when memory
// has run out, and when a thread or the process ends.
constexpr std::size_t kReportBytes = 4096;
thread_local char report_text[kReportBytes] = "";

terrace_error code_of(SessionProblem problem) {
  switch (problem) {
    case SessionProblem::kArgument:
      return TERRACE_ERROR_ARGUMENT;
    case SessionProblem::kOrder:
      return TERRACE_ERROR_ORDER;
    case SessionProblem::kDType:
      return TERRACE_ERROR_DTYPE;
    case SessionProblem::kUnsupported:
      return TERRACE_ERROR_UNSUPPORTED;
    case SessionProblem::kMismatch:
      return TERRACE_ERROR_MISMATCH;
    case SessionProblem::kMissingGradient:
      return TERRACE_ERROR_MISSING_GRADIENT;
    case SessionProblem::kParameterChanged:
      return TERRACE_ERROR_PARAMETER_CHANGED;
    case SessionProblem::kFailed:
      return TERRACE_ERROR_FAILED;
  }
  return TERRACE_ERROR_INTERNAL;
}

}  // namespace

terrace_error report(terrace_error error, const char* what) noexcept {
  std::size_t size = 0;
  for (; size + 1 < kReportBytes && what[size] != '\0'; ++size) report_text[size] = what[size];
  // Cuts a text that is too long after a whole UTF-8 character.
  while (size > 0 && (static_cast<unsigned char>(what[size]) & 0xC0U) == 0x80U) --size;
  report_text[size] = '\0';
  return error;
}

const char* last_report() noexcept { return report_text; }

const char* name_of_error(std::int32_t error) noexcept {
  struct Named {
    terrace_error error;
    const char* name;
  };
  static constexpr Named kNames[] = {
      {TERRACE_OK, "TERRACE_OK"},
      {TERRACE_ERROR_ARGUMENT, "TERRACE_ERROR_ARGUMENT"},
      {TERRACE_ERROR_ORDER, "TERRACE_ERROR_ORDER"},
      {TERRACE_ERROR_DTYPE, "TERRACE_ERROR_DTYPE"},
      {TERRACE_ERROR_UNSUPPORTED, "TERRACE_ERROR_UNSUPPORTED"},
      {TERRACE_ERROR_DOES_NOT_FIT, "TERRACE_ERROR_DOES_NOT_FIT"},
      {TERRACE_ERROR_ENVIRONMENT, "TERRACE_ERROR_ENVIRONMENT"},
      {TERRACE_ERROR_IO, "TERRACE_ERROR_IO"},
      {TERRACE_ERROR_FULL_DISK, "TERRACE_ERROR_FULL_DISK"},
      {TERRACE_ERROR_CORRUPT, "TERRACE_ERROR_CORRUPT"},
      {TERRACE_ERROR_MISMATCH, "TERRACE_ERROR_MISMATCH"},
      {TERRACE_ERROR_MISSING_GRADIENT, "TERRACE_ERROR_MISSING_GRADIENT"},
      {TERRACE_ERROR_PARAMETER_CHANGED, "TERRACE_ERROR_PARAMETER_CHANGED"},
      {TERRACE_ERROR_NOT_FINITE, "TERRACE_ERROR_NOT_FINITE"},
      {TERRACE_ERROR_FORKED, "TERRACE_ERROR_FORKED"},
      {TERRACE_ERROR_FAILED, "TERRACE_ERROR_FAILED"},
      {TERRACE_ERROR_INTERNAL, "TERRACE_ERROR_INTERNAL"},
  };
  for (const Named& named : kNames) {
    if (named.error == error) return named.name;
  }
  return "unknown";
}

namespace {

terrace_error report_unforeseen(const std::exception& error) noexcept {
  try {
    return report(TERRACE_ERROR_INTERNAL, failure_text(error).c_str());
  } catch (...) {
    return report(TERRACE_ERROR_INTERNAL, "a defect of Terrace: an unexpected exception");
  }
}

}  // namespace

terrace_error report_exception() noexcept {
  try {
    throw;
  } catch (const SessionError& error) {
    return report(code_of(error.problem()), error.what());
  } catch (const OutOfMemory& error) {
    return report(TERRACE_ERROR_DOES_NOT_FIT, error.what());
  } catch (const IoError& error) {
    return report(is_full_disk(error) ? TERRACE_ERROR_FULL_DISK : TERRACE_ERROR_IO, error.what());
  } catch (const CorruptData& error) {
    return report(TERRACE_ERROR_CORRUPT, error.what());
  } catch (const NotFinite& error) {
    return report(TERRACE_ERROR_NOT_FINITE, error.what());
  } catch (const ConfigError& error) {
    return report(TERRACE_ERROR_ENVIRONMENT, error.what());
  } catch (const EnvironmentError& error) {
    return report(TERRACE_ERROR_ENVIRONMENT, error.what());
  } catch (const DeviceError& error) {
    return report(TERRACE_ERROR_ENVIRONMENT, error.what());
  } catch (const UsageError& error) {
    return report(TERRACE_ERROR_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return report(TERRACE_ERROR_DOES_NOT_FIT, "the process has no memory left");
  } catch (const std::exception& error) {
    return report_unforeseen(error);
  } catch (...) {
    return report(TERRACE_ERROR_INTERNAL, "an exception that is not Terrace's");
  }
}

}  // namespace terrace
