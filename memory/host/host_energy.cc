#include "memory/host/host_energy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNoDriver =
    "load the kernel module intel_rapl_msr, which serves the processors of Intel and AMD; virtual "
    "machines and many containers show no counters";

// No zone takes more power than this for long. A counter wraps after its range divided by it, at
// the earliest.
constexpr double kZoneWattsMax = 1000;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the zone that contains the zone "intel-rapl:0:1": "intel-rapl:0".
std::string parent_of(const std::string& zone) { return zone.substr(0, zone.rfind(':')); }

// Returns the zones of a folder in the order in which they count: those of intel-rapl first, and a
// package before its parts.
std::vector<std::string> zones_in(const std::string& directory) {
  std::vector<std::string> zones;
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string zone = entry->path().filename().string();
    if (zone.find(':') != std::string::npos) zones.push_back(zone);
  }
  std::ranges::sort(zones);
  std::ranges::stable_partition(
      zones, [](const std::string& zone) { return zone.starts_with("intel-rapl:"); });
  return zones;
}

}  // namespace

struct HostEnergy::Counter {
  std::string name;
  int file = -1;
  std::uint64_t range_uj = 0;  // the counter begins again at 0 after it; 0: not known
  std::optional<std::uint64_t> last_uj = std::nullopt;

  Counter(std::string of, int opened, std::uint64_t range)
      : name(std::move(of)), file(opened), range_uj(range) {}
  ~Counter() { ::close(file); }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  std::optional<std::uint64_t> read_uj() const {
    std::array<char, 32> text{};
    const ssize_t size = ::pread(file, text.data(), text.size(), 0);
    std::uint64_t value = 0;
    const char* const end = text.data() + std::max<ssize_t>(size, 0);
    const auto [stop, problem] = std::from_chars(text.data(), end, value);
    if (problem != std::errc()) return std::nullopt;
    return value;
  }

  // Returns the microjoules since the last call; none where they are not known.
  std::optional<double> take_uj(double passed_s) {
    const std::optional<std::uint64_t> before = std::exchange(last_uj, read_uj());
    if (!before || !last_uj) return std::nullopt;
    if (range_uj != 0 && passed_s * kZoneWattsMax * 1e6 >= static_cast<double>(range_uj)) {
      return std::nullopt;
    }
    if (*last_uj >= *before) return static_cast<double>(*last_uj - *before);
    if (range_uj < *before) return std::nullopt;
    return static_cast<double>(range_uj - *before + *last_uj);
  }
};

HostEnergy::HostEnergy(const std::string& directory) {
  open(directory);
  if (!lack_.empty()) counters_.clear();
}

HostEnergy::~HostEnergy() = default;

void HostEnergy::open(const std::string& directory) {
  std::error_code failed;
  if (!fs::is_directory(directory, failed)) {
    lack_ = fmt::format("no {}; {}", directory, kNoDriver);
    return;
  }
  std::vector<std::pair<std::string, std::string>> packages;  // zone and name
  for (const std::string& zone : zones_in(directory)) {
    const std::string name = first_line(fs::path(directory) / zone / "name");
    const auto has_name = [&](const auto& package) { return package.second == name; };
    if (name.starts_with("package") && std::ranges::none_of(packages, has_name)) {
      packages.emplace_back(zone, name);
      open_zone(directory, zone, name);
    } else if (name == "dram") {
      const auto is_parent = [&](const auto& package) { return package.first == parent_of(zone); };
      const auto package = std::ranges::find_if(packages, is_parent);
      if (package == packages.end()) continue;
      open_zone(directory, zone, fmt::format("dram of {}", package->second));
    }
  }
  if (packages.empty()) {
    lack_ = fmt::format("{} has no counter of a processor package; {}", directory, kNoDriver);
  }
}

void HostEnergy::open_zone(const std::string& directory, const std::string& zone,
                           const std::string& name) {
  if (!lack_.empty()) return;
  const std::string path = (fs::path(directory) / zone / "energy_uj").string();
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const int error = errno;
    lack_ = fmt::format("cannot open {}: {}", path, std::strerror(error));
    if (error == EACCES || error == EPERM) {
      lack_ += fmt::format(
          "; the file is readable by root alone: train as root, or as root chmod "
          "a+r {}/*/energy_uj, again after each boot",
          directory);
    }
    return;
  }
  std::uint64_t range_uj = 0;
  const std::string range = first_line(fs::path(directory) / zone / "max_energy_range_uj");
  std::from_chars(range.data(), range.data() + range.size(), range_uj);
  counters_.push_back(std::make_unique<Counter>(name, file, range_uj));
  if (!counters_.back()->read_uj()) lack_ = fmt::format("{} has no number", path);
}

std::vector<std::string> HostEnergy::zones() const {
  std::vector<std::string> names;
  for (const auto& counter : counters_) names.push_back(counter->name);
  return names;
}

std::optional<double> HostEnergy::take_joules(std::int64_t now_ns) {
  const double passed_s = static_cast<double>(now_ns - std::exchange(taken_ns_, now_ns)) * 1e-9;
  std::optional<double> sum_uj;
  bool is_known = true;
  for (const auto& counter : counters_) {
    const std::optional<double> taken = counter->take_uj(passed_s);
    is_known = is_known && taken.has_value();
    sum_uj = sum_uj.value_or(0) + taken.value_or(0);
  }
  if (!is_known || !sum_uj) return std::nullopt;
  return *sum_uj * 1e-6;
}

}  // namespace terrace
