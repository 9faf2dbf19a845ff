#include <nlohmann/json.hpp>

#include "runtime/session/ledger_text.h"
#include "runtime/session/parameter_session.h"

namespace terrace {

using nlohmann::json;

std::string ParameterSession::describe_ledger() const {
  expect_awake("the ledger is asked for");
  if (home_ == nullptr) expect_ready("the ledger is asked for");
  return ledger_text(home_->ledger());
}

std::string ParameterSession::describe_metrics() const {
  expect_ready("metrics are asked for");
  const StateWindow::Traffic traffic = home_->traffic();
  return json{{"schema", "terrace.metrics/1"},
              {"step", progress_.step},
              {"gradient_norm", last_step_.gradient_norm},
              {"clip_coefficient", last_step_.clip_coefficient},
              {"step_s", last_step_.seconds},
              {"update_s", update_seconds_},
              {"nvme_read_bytes", traffic.read_bytes},
              {"nvme_write_bytes", traffic.write_bytes},
              {"nvme_wait_s", traffic.wait_s}}
      .dump();
}

}  // namespace terrace
