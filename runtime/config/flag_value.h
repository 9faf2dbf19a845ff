#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/step_range.h"

namespace terrace {

// The text written for one flag, on the command line or in a file, and its possible meanings. Every
// method that reads the text throws ConfigError, naming the flag and the text, if it cannot.
class FlagValue {
 public:
  // `where` names the flag for people: "--seed", or "run.toml: seed".
  FlagValue(std::string where, std::vector<std::string> texts)
      : where_(std::move(where)), texts_(std::move(texts)) {}

  const std::string& where() const { return where_; }
  const std::vector<std::string>& texts() const { return texts_; }
  const std::string& text() const;  // of a flag that takes one value

  // Reads a text that is not empty.
  const std::string& name() const;
  // Reads whole numbers such as 42, 10_000 and 5e8.
  std::int64_t integer(std::int64_t least,
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  std::uint64_t unsigned_integer() const;
  // Reads a finite number, least <= value.
  double number(double least) const;
  // Reads a number, least <= value <= most.
  double number(double least, double most) const;
  // Reads a number, 0 < value.
  double positive_number() const;
  // Reads a number, 0 <= value < 1.
  double fraction() const;
  // Reads a number of bytes, at least one.
  std::size_t size() const;
  bool on_off() const;
  // Reads "A:B" with 1 <= A <= B.
  StepRange step_range() const;

  // Returns the index of the text in `names`; refuses any other text, naming the nearest one.
  std::size_t choice(std::span<const std::string_view> names) const;

  [[noreturn]] void refuse(const std::string& why, const std::string& remedy) const;
  [[noreturn]] void not_built(const std::string& remedy) const;

 private:
  std::string where_;
  std::vector<std::string> texts_;
};

}  // namespace terrace
