#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/function_ref.h"

// The functions that the fuzzers share. Each has LLVMFuzzerTestOneInput()
// (https://llvm.org/docs/LibFuzzer.html).
namespace terrace::fuzz {

// A directory for files that are read; it is removed when the process ends.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  // Replaces a file, and returns its path.
  std::string write(const std::string& name, std::string_view content) const;

 private:
  std::string path_;
};

// Returns bytes as text.
std::string_view text_of(const std::uint8_t* data, std::size_t size);

// Calls `call`. A reader may refuse a file by throwing an error of ours; anything else ends the
// process.
void may_refuse(FunctionRef<void()> call);

// Ends the process where `holds` is false.
void expect(bool holds, const char* what);

}  // namespace terrace::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
