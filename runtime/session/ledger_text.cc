#include "runtime/session/ledger_text.h"

#include <nlohmann/json.hpp>

namespace terrace {

using nlohmann::json;

std::string ledger_text(const Ledger& ledger) {
  json tiers = json::object();
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    json accounts = json::object();
    for (std::size_t i = 0; i < kAccountCount; ++i) {
      const std::size_t bytes = ledger[tier].charged_bytes.at(i);
      if (bytes > 0) accounts[std::string(name_of(static_cast<Account>(i)))] = bytes;
    }
    json one = {{"peak_bytes", ledger[tier].peak_bytes}, {"accounts", std::move(accounts)}};
    const std::optional<std::size_t> budget = ledger[tier].budget_bytes;
    one["budget_bytes"] = budget ? json(*budget) : json(nullptr);
    tiers[std::string(name_of(tier))] = std::move(one);
  }
  return json{{"schema", "terrace.ledger/1"}, {"tiers", std::move(tiers)}}.dump();
}

}  // namespace terrace
