#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

// Exceptions for what the user or the environment did wrong. Every error names the thing, and says
// what to do about it. Broken invariants of our own are not errors: see base/check.h. Asynchronous
// work ends with a value, which whoever waits for it turns into one of these exceptions.
namespace terrace {

class Error : public std::runtime_error {
 public:
  // `what_happened` names the thing; `remedy` says what to do, and may be empty.
  Error(const std::string& what_happened, const std::string& remedy);

  const std::string& remedy() const { return remedy_; }

 private:
  std::string remedy_;
};

// A wrong flag, key, value, or combination of them. Exit code 2.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A budget or the machine is too small for what was asked. Exit code 3.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// Something that is needed before the start is missing. Exit code 4.
class EnvironmentError : public Error {
 public:
  using Error::Error;
};

// A file or device failed. Exit code 1.
class IoError : public Error {
 public:
  struct Where {
    std::string operation;  // "write", "open"
    std::string path;
    std::uint64_t offset = 0;  // bytes
    std::uint64_t size = 0;    // bytes; 0 where the operation has no extent
    int error_number = 0;      // errno; 0 for a short transfer
  };
  explicit IoError(Where where, const std::string& remedy = "");

  const Where& where() const { return where_; }

 private:
  Where where_;
};

// Bytes are there, but differ from the bytes that were written or are not allowed by the format.
// Exit code 5.
class CorruptData : public Error {
 public:
  using Error::Error;
};

// A rank died, or a collective did not complete. Exit code 1.
class CommError : public Error {
 public:
  using Error::Error;
};

// The accelerator failed. Exit code 1.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// The loss or a gradient is not a finite number. Exit code 6.
class NotFinite : public Error {
 public:
  using Error::Error;
};

}  // namespace terrace
