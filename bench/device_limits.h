#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/case_device.h"
#include "bench/case_memory.h"
#include "bench/samples.h"

// The limits of a device, measured on it.
namespace terrace {

// Work, and the amount of it that each call does.
struct DeviceWork {
  std::string is;  // in words
  double amount = 0;
  std::function<void()> enqueue = {};
};

// Returns the number of calls that take about `seconds`, if one that was timed took `one_call_s`:
// at least one, and no more than a device queues gladly.
int calls_for(double seconds, double one_call_s);

// Work per second. A measurement takes about `seconds`; the constructor finds out how many calls
// that is.
class DeviceRate {
 public:
  DeviceRate(CaseDevice& device, DeviceWork work, double seconds);

  double measure();
  const DeviceWork& work() const { return work_; }

 private:
  CaseDevice& device_;
  const DeviceWork work_;
  int calls_ = 1;
};

// The limits of kernels that run alone: large copies within the device, in bytes read and written,
// and the best of some square products of a compute type, in operations.
class DeviceLimits {
 public:
  // Borrows the device. Tries the products, each for about `seconds`. `small`: with as little work
  // as possible.
  DeviceLimits(CaseDevice& device, DType type, double seconds, bool small);

  // Return bytes and operations per second.
  double copy() { return copy_.measure(); }
  double product() { return product_.measure(); }
  const std::string& copy_is() const { return copy_.work().is; }
  const std::string& product_is() const { return product_.work().is; }

 private:
  DeviceCaseMemory memory_;
  DeviceRate copy_;
  DeviceRate product_;
};

// A product of `flops` operations, and how many it does per second.
struct ProductRate {
  double flops = 0;
  double flops_per_s = 0;
};

// Measures square products of these widths, which ascend, each for about `seconds`. Borrows the
// device. Takes product_rates_bytes() of its memory for the time of the call. Throws OutOfMemory,
// DeviceError.
std::vector<ProductRate> product_rates(CaseDevice& device, DType type,
                                       std::span<const std::int64_t> widths, double seconds);

// Returns the most that product_rates() takes, with any type.
std::size_t product_rates_bytes(std::int64_t widest);

// Returns the device memory that the limits take.
std::size_t device_limits_bytes(DType type, bool small);

}  // namespace terrace
