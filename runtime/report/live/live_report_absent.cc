#include "base/error.h"
#include "runtime/report/live_report.h"

// For builds without cpp-httplib.
namespace terrace::report {

struct LiveReport::Server {};

// NOLINTNEXTLINE(performance-unnecessary-value-param): the builds with the package keep it
LiveReport::LiveReport(int /*port*/, LivePages /*pages*/) {
  throw EnvironmentError(
      "--live: Terrace was built without cpp-httplib, which serves the page",
      "install it (libcpp-httplib-dev on Debian and Ubuntu), then configure and build again; or "
      "leave --live out, and run terrace report");
}

LiveReport::~LiveReport() = default;

int LiveReport::port() const { return 0; }

}  // namespace terrace::report
