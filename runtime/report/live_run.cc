#include "runtime/report/live_report.h"
#include "runtime/report/prometheus_text.h"
#include "runtime/report/report_page.h"
#include "runtime/report/report_run.h"

namespace terrace::report {

void LiveRun::set_directory(const std::string& run_dir) {
  const std::lock_guard lock(mutex_);
  run_dir_ = run_dir;
}

std::string LiveRun::directory() const {
  const std::lock_guard lock(mutex_);
  return run_dir_;
}

std::string LiveRun::page() const {
  const std::string run_dir = directory();
  return run_dir.empty() ? run_dir : report_page(read_runs({run_dir}));
}

std::string LiveRun::metrics() const {
  const std::string run_dir = directory();
  return run_dir.empty() ? run_dir : prometheus_text(read_runs({run_dir}));
}

}  // namespace terrace::report
