#include <fmt/format.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/progress_console.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/plan_options.h"
#include "runtime/config/plan_sweep.h"
#include "runtime/model/model_directory.h"
#include "runtime/train/plan_forecast.h"
#include "runtime/train/plan_run.h"
#include "runtime/train/plan_search_run.h"
#include "runtime/train/plan_sweep_run.h"

namespace terrace {

int run_plan(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", plan_help());
    return 0;
  }
  ProgressConsole console(stdout, {});
  const PlanSweep sweep = parse_plan_sweep(arguments);
  if (sweep.combinations() > 0) {
    sweep_plans(sweep, console);
    return 0;
  }
  PlanOptions options = parse_plan_options(arguments);
  check_plan_modes(options, false);
  options.train.model.model = directory_of_model(options.train.model.model);
  const Machine machine = planned_machine(options);
  if (options.auto_file.empty()) {
    plan_run(options, machine, console);
  } else {
    search_plan(options, machine, console);
  }
  return 0;
}

}  // namespace terrace
