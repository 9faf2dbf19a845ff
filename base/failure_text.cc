#include "base/failure_text.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>
#include <typeinfo>

#include "base/error.h"

namespace terrace {
namespace {

std::string readable(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string readable = status == 0 ? text.get() : name;
  // Libraries put versions and ABI tags into their names.
  for (const std::string tag : {"__cxx11::", "[abi:cxx11]"}) {
    for (std::size_t at = readable.find(tag); at != std::string::npos; at = readable.find(tag)) {
      readable.erase(at, tag.size());
    }
  }
  return readable;
}

std::string paths_of(const std::filesystem::filesystem_error& failure) {
  std::string paths;
  for (const auto& path : {failure.path1(), failure.path2()}) {
    if (!path.empty()) paths += (paths.empty() ? " of " : ", ") + path.string();
  }
  return paths;
}

}  // namespace

bool is_foreseen(const std::exception& failure) {
  return dynamic_cast<const Error*>(&failure) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
}

std::string kind_of_failure(const std::exception& failure) {
  const std::string kind = readable(typeid(failure).name());
  const auto* const refusal = dynamic_cast<const std::system_error*>(&failure);
  if (refusal == nullptr) return kind;
  const auto* const of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&failure);
  return fmt::format("{}{} ({})", kind, of_files == nullptr ? "" : paths_of(*of_files),
                     refusal->code().message());
}

std::string failure_text(const std::exception& failure) {
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr) {
    return "the system has no memory left beyond the tiers' budgets";
  }
  if (is_foreseen(failure)) return failure.what();
  return fmt::format("a defect of Terrace: no code handles an unexpected {}",
                     kind_of_failure(failure));
}

}  // namespace terrace
