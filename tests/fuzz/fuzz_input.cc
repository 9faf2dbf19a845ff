#include "tests/fuzz/fuzz_input.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/temporary_directory.h"

namespace terrace::fuzz {

Folder::Folder() : path_(temporary_directory() + "/terrace-fuzz-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) std::abort();
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, std::string_view content) const {
  std::string path = path_ + "/" + name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!file.flush()) std::abort();
  return path;
}

std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

void may_refuse(FunctionRef<void()> call) {
  try {
    call();
  } catch (const Error&) {  // a reader should refuse a bad file in this way
    return;
  }
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace terrace::fuzz
