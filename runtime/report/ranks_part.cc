#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/run_sections.h"
#include "runtime/report/series.h"
#include "runtime/report/share_bars.h"
#include "runtime/train/rank_waits.h"

namespace terrace::report {
namespace {

constexpr std::size_t kMostRows = 16;  // of a table; further ranks share a row

// Returns the value of an option without the quotes of TOML.
std::string option_of(const ReportRun& run, const std::string& key) {
  const auto found = run.config.find(key);
  if (found == run.config.end()) return "";
  std::string value = found->second;
  std::erase_if(value, [](char c) { return c == '"' || c == '\''; });
  return value;
}

std::string mesh_sentence(const ReportRun& run) {
  if (!run.facts.mesh) return "";
  const RanksOfRun& mesh = *run.facts.mesh;
  std::string text = fmt::format("{}: {} data-parallel x {} tensor-parallel x {}.",
                                 counted(mesh.ranks, "rank"), count_text(mesh.data),
                                 count_text(mesh.tensor), counted(mesh.pipeline, "pipeline stage"));
  if (mesh.islands > 1) {
    const bool is_hpz = option_of(run, "zero_partition") == "hpz";
    text += fmt::format(" {} of {} data-parallel ranks, and {} sharded in each of them.",
                        counted(mesh.islands, "island"), count_text(mesh.data / mesh.islands),
                        is_hpz ? "parameters are" : "all states are");
  }
  return paragraph(text);
}

std::string shares_table(const SharesOfRanks& shares) {
  const std::vector<double>& all = shares.micro_batches;
  const double sum = std::accumulate(all.begin(), all.end(), 0.0);
  if (!(sum > 0)) return "";
  HtmlTable table(fmt::format("Micro-batches of each step by data-parallel rank{}",
                              shares.origin.empty() ? "" : fmt::format(" ({})", shares.origin)),
                  {{"Data-parallel rank"}, {"Micro-batches", true}, {"Share of the step", true}});
  const auto add = [&](const std::string& name, double count) {
    table.add({name, number_element(count, number_text(count)),
               number_element(count / sum, percent_text(count / sum))});
  };
  const std::size_t shown = all.size() > kMostRows ? kMostRows - 1 : all.size();
  for (std::size_t rank = 0; rank < shown; ++rank) add(std::to_string(rank), all[rank]);
  if (shown < all.size()) {
    add(fmt::format("the other {}", all.size() - shown),
        std::accumulate(all.begin() + static_cast<std::ptrdiff_t>(shown), all.end(), 0.0));
  }
  return table.text();
}

// The waits of a run's ranks for each other, by rank.
struct WaitsOfRanks {
  std::vector<double> waited_s;
  std::vector<double> waited_for_s;  // by all other ranks together
  double seconds = 0;                // of the steps that are counted

  std::size_t ranks() const { return waited_s.size(); }
  // Returns the share of the time that a rank has waited.
  double share(std::size_t rank) const { return waited_s[rank] / seconds; }
  // Returns the share of the time that the other ranks have waited for it, in the mean.
  double share_for(std::size_t rank) const {
    return waited_for_s[rank] / static_cast<double>(ranks() - 1) / seconds;
  }
};

WaitsOfRanks waits_of(const MetricsTable& metrics) {
  const ListSums waited = metrics.list_sums("collective_wait_s");
  const ListSums waited_for = metrics.list_sums("collective_wait_by_cause_s");
  if (waited.sums.size() != waited_for.sums.size() || waited.sums.size() < 2) return {};
  const std::span<const double> steps = metrics.column("step_s");
  return {.waited_s = waited.sums,
          .waited_for_s = waited_for.sums,
          .seconds = finite_sum(steps.subspan(std::min(waited.first_row, steps.size())))};
}

// Returns the ranks, those first for which the others have waited longest.
std::vector<std::size_t> by_cause(const WaitsOfRanks& waits) {
  std::vector<std::size_t> order(waits.ranks());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t rank) { return waits.waited_for_s[rank]; });
  return order;
}

std::string waits_table(const WaitsOfRanks& waits, const std::string& id) {
  HtmlTable table("Waits between ranks, the rank that was waited for longest first",
                  {{"Rank"},
                   {"The others waited for it, all together", true},
                   {"Share of the time, mean of the others", true},
                   {"Share, drawn"},
                   {"It waited for others", true},
                   {"Share of the time", true}});
  const std::vector<std::size_t> order = by_cause(waits);
  const std::size_t shown = order.size() > kMostRows ? kMostRows - 1 : order.size();
  const auto seconds = [](double value) { return number_element(value, time_text(value)); };
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t rank = order[i];
    const double share = waits.share_for(rank);
    const ShareBar bar = {.id = fmt::format("{}w{}", id, rank),
                          .title = fmt::format("waits for rank {}", rank),
                          .parts = {{"waits of the other ranks", share, "l-collective"}},
                          .whole = 1,
                          .marker = std::nullopt};
    table.add({std::to_string(rank), seconds(waits.waited_for_s[rank]),
               number_element(share, percent_text(share)), share_bar(bar, percent_text),
               seconds(waits.waited_s[rank]),
               number_element(waits.share(rank), percent_text(waits.share(rank)))});
  }
  if (shown < order.size()) {
    double waited = 0;
    double waited_for = 0;
    for (std::size_t i = shown; i < order.size(); ++i) {
      waited += waits.waited_s[order[i]];
      waited_for += waits.waited_for_s[order[i]];
    }
    table.add({fmt::format("the other {}, added up", order.size() - shown), seconds(waited_for), "",
               "", seconds(waited), ""});
  }
  return table.text();
}

std::string waits_part(const WaitsOfRanks& waits, const std::string& id) {
  if (waits.ranks() == 0) {
    return paragraph(
        "No wait of a rank for another is in metrics.jsonl. Collectives of threads, MPI and "
        "sockets measure waits; collectives of NCCL do not.");
  }
  if (!(waits.seconds > 0)) return paragraph("No step has ended, so no waits are known.");
  std::string sentence = describe_rank_waits(waits.waited_for_s, waits.seconds);
  if (sentence.empty()) {
    sentence = "the ranks' collectives hardly waited for other ranks";
  }
  sentence.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(sentence.front())));
  return paragraph(escaped(sentence) +
                   ". A collective may run beside computation, and its waits "
                   "then cost less than they last.") +
         waits_table(waits, id);
}

}  // namespace

std::string ranks_part(const ReportRun& run, const std::string& id) {
  const WaitsOfRanks waits = waits_of(run.metrics);
  if (!run.facts.mesh && !run.facts.shares && waits.ranks() == 0) return "";
  return "<h4>Ranks</h4>\n" + mesh_sentence(run) +
         (run.facts.shares ? shares_table(*run.facts.shares) : "") + waits_part(waits, id);
}

}  // namespace terrace::report
