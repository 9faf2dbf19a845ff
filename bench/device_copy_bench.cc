#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "bench/bench_device.h"
#include "bench/bench_list.h"
#include "bench/lane_copies.h"

namespace terrace {
namespace {

// The rates of one load in GB/s, a sample a round. Copies both ways have a rate for each way until
// its own end, and one for all bytes until both ways have ended.
struct CopyRates {
  Samples upload, download, upload_of_both, download_of_both, both, local;
};

double rate_of(double bytes, double seconds) { return bytes * 1e-9 / seconds; }

// Takes one round of a load with buffers of `bytes` bytes. Returns the seconds.
double measure(CopyLoad& load, CopyWays ways, double bytes, CopyRates& rates) {
  const CopySeconds seconds = load.run(ways);
  switch (ways) {
    case CopyWays::kUpload:
      rates.upload.add(rate_of(bytes, seconds.upload));
      return seconds.upload;
    case CopyWays::kDownload:
      rates.download.add(rate_of(bytes, seconds.download));
      return seconds.download;
    case CopyWays::kLocal:
      rates.local.add(rate_of(bytes / 2, seconds.local));
      return seconds.local;
    case CopyWays::kBoth:
      break;
  }
  const double last = std::max(seconds.upload, seconds.download);
  rates.upload_of_both.add(rate_of(bytes / 2, seconds.upload));
  rates.download_of_both.add(rate_of(bytes / 2, seconds.download));
  rates.both.add(rate_of(bytes, last));
  return last;
}

// The names are nvbandwidth's, except for the sum.
struct CopyResult {
  const char* name;
  Samples CopyRates::* rate;
  double goal;  // for the ratio
};
constexpr auto kResults = std::to_array<CopyResult>({
    {"host_to_device_memcpy_ce", &CopyRates::upload, 0.95},
    {"device_to_host_memcpy_ce", &CopyRates::download, 0.95},
    {"host_to_device_bidirectional_memcpy_ce", &CopyRates::upload_of_both, 0.9},
    {"device_to_host_bidirectional_memcpy_ce", &CopyRates::download_of_both, 0.9},
    {"bidirectional_memcpy_ce_sum", &CopyRates::both, 0.9},
    {"device_local_copy", &CopyRates::local, 0.95},
});

constexpr auto kWays = std::to_array<CopyWays>(
    {CopyWays::kUpload, CopyWays::kDownload, CopyWays::kBoth, CopyWays::kLocal});

// The first load is ours; the others are its limits.
BenchResult result_of(const CopyResult& result, const std::vector<std::unique_ptr<CopyLoad>>& loads,
                      const std::vector<CopyRates>& rates) {
  BenchResult out;
  out.name = result.name;
  out.value = rates[0].*result.rate;
  out.goal = result.goal;
  for (std::size_t i = 1; i < loads.size(); ++i) {
    const Samples& plain = rates[i].*result.rate;
    out.details.push_back({snake_name(loads[i]->name()), "GB/s", plain});
    if (!out.limit.empty() && plain.median() <= out.limit.median()) continue;
    out.limit = plain;
    out.limit_is = loads[i]->name();
  }
  return out;
}

}  // namespace

std::vector<std::string> names_of_device_copy() {
  std::vector<std::string> names;
  for (const CopyResult& result : kResults) names.emplace_back(result.name);
  return names;
}

void bench_device_copy(const BenchOptions& options, BenchRecord& record, Log& log) {
  const BenchDevice& device = *options.device;
  record.expect(names_of_device_copy());
  const std::size_t usual = options.small ? 8 * kMiB : kGiB;
  const std::size_t bytes = round_up(options.bytes == 0 ? usual : options.bytes, 2 * kMiB);
  log.info(fmt::format("bench copy: {}, {} on each side, {} rounds", device.description,
                       format_size(bytes), options.repetitions));
  const std::unique_ptr<ComputeDevice> ours = device.backend->make(bytes);
  std::vector<std::unique_ptr<CopyLoad>> loads;
  loads.push_back(std::make_unique<LaneCopies>(*ours, bytes, device.numa_nodes));
  for (auto& plain : device.plain_copies(bytes)) loads.push_back(std::move(plain));

  std::vector<CopyRates> rates(loads.size());
  std::vector<Measurement> measurements;
  for (const CopyWays ways : kWays) {
    for (std::size_t i = 0; i < loads.size(); ++i) {
      loads[i]->run(ways);  // the first touches what is made late
      measurements.emplace_back(
          [&, ways, i] { return measure(*loads[i], ways, static_cast<double>(bytes), rates[i]); });
    }
  }
  interleave(measurements, record.rounds(options.repetitions), [&](const auto& /*seconds*/) {
    for (const CopyResult& result : kResults) record.put(result_of(result, loads, rates));
  });
}

}  // namespace terrace
