#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// The folder in which Linux shows the counters of energy.
inline constexpr const char* kPowercapDirectory = "/sys/class/powercap";

// Measures the energy that the processors of this machine and their memory take, by the counters of
// Linux's power capping framework (RAPL). It adds up the packages and their "dram" zones. The other
// zones of a package are parts of it, and "psys" contains the packages, so these are left out. A
// package that two drivers show (intel-rapl and intel-rapl-mmio) counts once. The counters belong
// to the whole machine: they also count what other programs take. Used by one thread.
class HostEnergy {
 public:
  // Opens the counters that `directory` shows. Never throws: lack() says what is missing.
  explicit HostEnergy(const std::string& directory = kPowercapDirectory);
  ~HostEnergy();
  HostEnergy(const HostEnergy&) = delete;
  HostEnergy& operator=(const HostEnergy&) = delete;

  // Returns why nothing is measured, with the remedy; empty where energy is measured.
  const std::string& lack() const { return lack_; }
  // Returns the names of the zones that are added up, for example "package-0".
  std::vector<std::string> zones() const;

  // Returns the joules since the call before this one. `now_ns` is the time of a monotonic clock.
  // None at the first call, where nothing is measured, where a counter could not be read this time
  // or the last, and after a time in which a counter may have wrapped more than once.
  std::optional<double> take_joules(std::int64_t now_ns);

 private:
  struct Counter;

  void open(const std::string& directory);
  void open_zone(const std::string& directory, const std::string& zone, const std::string& name);

  std::string lack_;
  std::vector<std::unique_ptr<Counter>> counters_;
  std::int64_t taken_ns_ = 0;
};

}  // namespace terrace
