#include <nlohmann/json.hpp>

#include "runtime/session/parameter_session.h"

namespace terrace {

using nlohmann::json;

std::string ParameterSession::describe_ledger() const {
  if (home_ == nullptr) expect_ready("the ledger is asked for");
  json tiers = json::object();
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    const TierLedger& ledger = home_->ledger()[tier];
    json accounts = json::object();
    for (std::size_t i = 0; i < kAccountCount; ++i) {
      if (ledger.charged_bytes.at(i) == 0) continue;
      accounts[std::string(name_of(static_cast<Account>(i)))] = ledger.charged_bytes.at(i);
    }
    json one = {{"peak_bytes", ledger.peak_bytes}, {"accounts", std::move(accounts)}};
    one["budget_bytes"] = ledger.budget_bytes ? json(*ledger.budget_bytes) : json(nullptr);
    tiers[std::string(name_of(tier))] = std::move(one);
  }
  return json{{"schema", "terrace.ledger/1"}, {"tiers", std::move(tiers)}}.dump();
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
