#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tests/golden/golden_families.h"
#include "tests/golden/golden_sampler.h"

// For tests in Python:
//   golden_logits             prints the names of the cases that must hold
//   golden_logits DIR ID...   prints the logits after the ids, of the model or adapter in DIR
int main(int argc, char** argv) {
  try {
    if (argc < 3) {
      for (const std::string& name : terrace::cases_that_hold()) fmt::print("{}\n", name);
      return 0;
    }
    std::vector<std::int32_t> ids;
    for (int i = 2; i < argc; ++i) ids.push_back(std::stoi(argv[i]));
    terrace::GoldenSampler sampler(argv[1], static_cast<std::int64_t>(ids.size()));
    // Nine digits distinguish any two fp32 numbers.
    for (const float logit : sampler.logits_after(ids)) fmt::print("{:.9g}\n", logit);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "golden_logits: {}\n", error.what());
    return 1;
  }
}
