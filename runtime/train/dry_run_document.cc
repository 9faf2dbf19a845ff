#include "runtime/train/dry_run_document.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

ordered_json bytes_or_null(const std::optional<std::size_t>& bytes) {
  return bytes.has_value() ? ordered_json(*bytes) : ordered_json(nullptr);
}

ordered_json accounts_json(const TierLedger& tier) {
  ordered_json accounts = ordered_json::object();
  for (std::size_t a = 0; a < kAccountCount; ++a) {
    const auto account = static_cast<Account>(a);
    accounts[std::string(name_of(account))] = tier[account];
  }
  return accounts;
}

ordered_json tier_json(const DryRunDocument& document, Tier tier) {
  const auto t = static_cast<std::size_t>(tier);
  return {{"name", name_of(tier)},
          {"budget_bytes", bytes_or_null(document.budgets.at(t))},
          {"peak_bytes", document.ledger[tier].peak_bytes},
          {"least_bytes", document.least_bytes.at(t)},
          {"accounts", accounts_json(document.ledger[tier])}};
}

ordered_json prediction_json(const StepPrediction& predicted, std::int64_t tokens_per_step) {
  return {{"step_s", predicted.step_s},
          {"tokens_per_s", static_cast<double>(tokens_per_step) / predicted.step_s},
          {"bottleneck", name_of(predicted.limit)},
          {"flops_per_s", predicted.flops_per_s},
          {"ops_are_measured", predicted.ops_are_measured},
          {"nvme_read_bytes_per_s", predicted.drive.read_bytes_per_s},
          {"nvme_write_bytes_per_s", predicted.drive.write_bytes_per_s},
          {"nvme_is_remembered", predicted.drive_is_remembered},
          {"upload_bytes_per_s", predicted.upload_bytes_per_s},
          {"download_bytes_per_s", predicted.download_bytes_per_s},
          {"collective_bytes_per_s", predicted.collective_bytes_per_s}};
}

}  // namespace

std::string plan_figures_json(const Ledger& ledger, const std::optional<StepPrediction>& prediction,
                              std::int64_t tokens_per_step, const std::string& ranks) {
  ordered_json memory = ordered_json::array();
  for (const Tier tier : kTiers) {
    memory.push_back({{"name", name_of(tier)},
                      {"budget_bytes", bytes_or_null(ledger[tier].budget_bytes)},
                      {"peak_bytes", ledger[tier].peak_bytes},
                      {"accounts", accounts_json(ledger[tier])}});
  }
  ordered_json figures = {{"memory", memory}};
  if (!ranks.empty()) figures["ranks"] = ordered_json::parse(ranks);
  if (prediction) figures["prediction"] = prediction_json(*prediction, tokens_per_step);
  return figures.dump();
}

Ledger gather_ledger(const Ledger& own, const RankGroup& ranks) {
  Ledger ledger = own;
  for (TierLedger& tier : ledger.tiers) {
    const auto peak = static_cast<std::int64_t>(tier.peak_bytes);
    const std::int64_t largest = ranks.largest(peak);
    for (std::size_t& charged : tier.charged_bytes) {
      charged = static_cast<std::size_t>(
          ranks.largest(peak == largest ? static_cast<std::int64_t>(charged) : 0));
    }
    constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
    const auto budget =
        tier.budget_bytes.has_value() ? static_cast<std::int64_t>(*tier.budget_bytes) : kNone;
    const std::int64_t of_largest = ranks.largest(peak == largest ? budget : 0);
    tier.budget_bytes.reset();
    if (of_largest != kNone) tier.budget_bytes = static_cast<std::size_t>(of_largest);
    tier.peak_bytes = static_cast<std::size_t>(largest);
  }
  return ledger;
}

void gather_step(const Program& own, const RankGroup& ranks, DryRunDocument& document) {
  const auto sum = [&ranks](double value) { return static_cast<std::uint64_t>(ranks.sum(value)); };
  document.upload_bytes = sum(lane_bytes(own, Lane::kUpload));
  document.download_bytes = sum(lane_bytes(own, Lane::kDownload));
  document.nvme_read_bytes = sum(lane_bytes(own, Lane::kRead));
  document.nvme_write_bytes = sum(lane_bytes(own, Lane::kWrite));
  double collective = 0;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    if (is_of_kind(lane, LaneKind::kCollective)) collective += lane_bytes(own, lane);
  }
  document.collective_bytes = sum(collective);
  document.ops = sum(static_cast<double>(op_count(own)));
}

std::string to_json(const DryRunDocument& document) {
  ordered_json results = ordered_json::array();
  for (const Tier tier : kTiers) results.push_back(tier_json(document, tier));
  results.push_back({{"name", "step"},
                     {"upload_bytes", document.upload_bytes},
                     {"download_bytes", document.download_bytes},
                     {"nvme_read_bytes", document.nvme_read_bytes},
                     {"nvme_write_bytes", document.nvme_write_bytes},
                     {"collective_bytes", document.collective_bytes},
                     {"ops", document.ops}});
  if (document.prediction.has_value()) {
    ordered_json prediction = {{"name", "prediction"}};
    prediction.update(prediction_json(*document.prediction, document.tokens_per_step));
    results.push_back(std::move(prediction));
  }
  ordered_json reasons = {{"name", "reasons"}};
  reasons.update(ordered_json::parse(document.reasons));
  results.push_back(std::move(reasons));
  if (!document.documents.empty()) {
    ordered_json data = {{"name", "data"}};
    data.update(ordered_json::parse(document.documents));
    results.push_back(std::move(data));
  }
  ordered_json here = ordered_json::array();
  for (const StartObstacle& obstacle : document.obstacles) {
    here.push_back({{"exit_code", obstacle.exit_code}, {"reason", obstacle.reason}});
  }
  const ordered_json json = {{"schema", "terrace.dry_run/1"},
                             {"version", terrace_version()},
                             {"host", ordered_json::parse(host_facts_json())},
                             {"fits", document.fits},
                             {"here", here},
                             {"results", results}};
  // Paths may have any bytes, and JSON text may not: bytes that are not UTF-8 become U+FFFD.
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace terrace
