#pragma once

#include <string_view>

namespace terrace {

// The place where a library says something that a person should read. Libraries never print;
// runtime/cli provides the sink that does. Thread-safe.
class Log {
 public:
  virtual ~Log() = default;
  virtual void info(std::string_view line) = 0;
  virtual void warning(std::string_view line) = 0;
};

class SilentLog final : public Log {
 public:
  void info(std::string_view) override {}
  void warning(std::string_view) override {}
};

}  // namespace terrace
