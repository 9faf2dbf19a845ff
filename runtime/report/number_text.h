#pragma once

#include <cstdint>
#include <string>

// Numbers as people read them.
namespace terrace::report {

// Returns about three significant digits: "0.00123", "2.42", "25,300", "3e-05".
std::string number_text(double value);
// Returns a whole number with commas: "100,000".
std::string count_text(std::int64_t value);
// Returns a label of an axis, short: "0.5", "2k", "3e-4".
std::string tick_text(double value);
// Returns a time in the unit that suits it: "1.94 ms", "12.3 s", "2 h 5 min".
std::string time_text(double seconds);
// Returns a share between 0 and 1 in percent: "41.3 %".
std::string percent_text(double share);
// Returns bytes as format_size() does; fractions are dropped.
std::string bytes_text(double bytes);
// Returns a rate in the unit that suits it: "2.41 GB/s", "2.05 MB/s".
std::string rate_text(double bytes_per_second);
// Returns "2026-11-29 10:26 UTC" for seconds since 1970.
std::string date_text(double seconds_since_1970);
// Returns "1 step", "2 steps": the count and the noun.
std::string counted(std::int64_t count, const std::string& noun);

}  // namespace terrace::report
