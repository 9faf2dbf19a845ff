#include "tests/tidy/include_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "tests/tidy/source_text.h"

namespace terrace::tidy {
namespace {

// Files may include headers of their own folder and of folders of a lower level. The folders in
// runtime/ have levels of their own. The command line is above the benchmarks, whose commands it
// registers.
struct Folder {
  std::string_view name;
  int level;
};

constexpr int kTop = 20;
constexpr auto kFolders = std::to_array<Folder>({{"base", 0},
                                                 {"memory", 1},
                                                 {"kernels", 2},
                                                 {"offload", 2},
                                                 {"optim", 3},
                                                 {"parallel", 4},
                                                 {"runtime/tokenizer", 5},
                                                 {"runtime/jinja", 6},
                                                 {"runtime/chat", 7},
                                                 {"runtime/data", 8},
                                                 {"runtime/config", 9},
                                                 {"runtime/model", 10},
                                                 {"runtime/step", 11},
                                                 {"runtime/plan", 12},
                                                 {"runtime/engine", 13},
                                                 {"runtime/checkpoint", 14},
                                                 {"runtime/compare", 15},
                                                 {"runtime/machine", 15},
                                                 {"runtime/session", 16},
                                                 {"runtime/train", 16},
                                                 {"runtime/report", 17},
                                                 {"runtime/capi", 17},
                                                 {"bench", 17},
                                                 {"runtime/cli", 18},
                                                 {"tests", kTop},
                                                 {"examples", kTop},
                                                 {"tools", kTop}});

// Headers that begin with one of the prefixes belong to the vendor. Only files whose path begins
// with one of the places may include them, and the tests of such a place.
struct Vendor {
  std::string_view name;
  std::span<const std::string_view> prefixes;
  std::span<const std::string_view> places;
  bool sources_only = false;
};

constexpr auto kCudaHeaders = std::to_array<std::string_view>(
    {"cuda.h", "cuda_", "cuda/", "cub/", "thrust/", "driver_types.h", "vector_types.h"});
constexpr auto kCudaPlaces = std::to_array<std::string_view>(
    {"memory/cuda/", "kernels/cuda/", "optim/cuda/", "parallel/nccl/"});
constexpr auto kCublasHeaders = std::to_array<std::string_view>({"cublas", "cudnn"});
constexpr auto kCublasPlaces = std::to_array<std::string_view>({"kernels/cuda/"});
constexpr auto kNcclHeaders = std::to_array<std::string_view>({"nccl"});
constexpr auto kNcclPlaces = std::to_array<std::string_view>({"parallel/nccl/"});
constexpr auto kMpiHeaders = std::to_array<std::string_view>({"mpi.h", "mpi-ext.h", "openmpi/"});
constexpr auto kMpiPlaces = std::to_array<std::string_view>({"parallel/mpi/"});
constexpr auto kUringHeaders = std::to_array<std::string_view>({"liburing", "linux/io_uring.h"});
constexpr auto kUringPlaces = std::to_array<std::string_view>({"offload/uring/"});
constexpr auto kHostHeaders = std::to_array<std::string_view>({"hwloc", "tbb/", "oneapi/tbb"});
constexpr auto kHostPlaces = std::to_array<std::string_view>({"memory/host/"});
constexpr auto kHighwayHeaders = std::to_array<std::string_view>({"hwy/"});
constexpr auto kHighwayPlaces = std::to_array<std::string_view>({"kernels/cpu/", "optim/cpu/"});
constexpr auto kDnnlHeaders = std::to_array<std::string_view>({"dnnl", "oneapi/dnnl"});
constexpr auto kDnnlPlaces = std::to_array<std::string_view>({"kernels/cpu/"});
constexpr auto kTextHeaders =
    std::to_array<std::string_view>({"pcre2", "utf8proc", "sentencepiece"});
constexpr auto kTextPlaces =
    std::to_array<std::string_view>({"runtime/tokenizer/", "runtime/jinja/"});
constexpr auto kParserHeaders = std::to_array<std::string_view>({"nlohmann/", "toml++/", "CLI/"});
constexpr auto kParserPlaces = std::to_array<std::string_view>(
    {"runtime/", "bench/", "tests/e2e/", "tests/golden/", "tests/fuzz/", "tests/guards/"});
constexpr auto kXxhashHeaders = std::to_array<std::string_view>({"xxh"});
constexpr auto kXxhashPlaces = std::to_array<std::string_view>({"base/"});
constexpr auto kCompressionHeaders = std::to_array<std::string_view>({"zlib.h", "zstd"});
constexpr auto kCompressionPlaces = std::to_array<std::string_view>({"runtime/data/"});
constexpr auto kHttpHeaders = std::to_array<std::string_view>({"httplib.h"});
constexpr auto kHttpPlaces = std::to_array<std::string_view>({"runtime/report/live/"});
constexpr auto kBenchmarkHeaders = std::to_array<std::string_view>({"benchmark/"});
constexpr auto kBenchmarkPlaces = std::to_array<std::string_view>({"bench/"});
constexpr auto kTestHeaders = std::to_array<std::string_view>({"gtest/", "gmock/"});
constexpr auto kTestPlaces = std::to_array<std::string_view>({"tests/"});

constexpr auto kVendors =
    std::to_array<Vendor>({{"CUDA", kCudaHeaders, kCudaPlaces},
                           {"cuBLAS and cuDNN", kCublasHeaders, kCublasPlaces},
                           {"NCCL", kNcclHeaders, kNcclPlaces},
                           {"MPI", kMpiHeaders, kMpiPlaces},
                           {"liburing", kUringHeaders, kUringPlaces},
                           {"hwloc and oneTBB", kHostHeaders, kHostPlaces},
                           {"Highway", kHighwayHeaders, kHighwayPlaces},
                           {"oneDNN", kDnnlHeaders, kDnnlPlaces},
                           {"JSON, TOML and CLI", kParserHeaders, kParserPlaces, true},
                           {"PCRE2, utf8proc and SentencePiece", kTextHeaders, kTextPlaces, true},
                           {"xxHash", kXxhashHeaders, kXxhashPlaces},
                           {"zlib and Zstandard", kCompressionHeaders, kCompressionPlaces, true},
                           {"cpp-httplib", kHttpHeaders, kHttpPlaces, true},
                           {"Google Benchmark", kBenchmarkHeaders, kBenchmarkPlaces},
                           {"GoogleTest", kTestHeaders, kTestPlaces}});

// Folders of angle-bracket headers that everyone may use.
constexpr auto kOpenFolders =
    std::to_array<std::string_view>({"sys/", "linux/", "asm/", "netinet/", "fmt/", "sanitizer/"});

struct Include {
  std::string_view header;
  bool quoted = false;
};

std::optional<Include> parse_include(std::string_view line) {
  line = trim(line);
  if (!line.starts_with('#')) return std::nullopt;
  line = trim(line.substr(1));
  if (!line.starts_with("include")) return std::nullopt;
  line = trim(line.substr(std::string_view("include").size()));
  if (line.size() < 2 || (line.front() != '"' && line.front() != '<')) return std::nullopt;
  const bool quoted = line.front() == '"';
  const std::size_t end = line.find(quoted ? '"' : '>', 1);
  if (end == std::string_view::npos) return std::nullopt;
  return Include{line.substr(1, end - 1), quoted};
}

std::string_view first_component(std::string_view path) { return path.substr(0, path.find('/')); }

// Returns the folder of a path, or null if the table has none.
const Folder* find_folder(std::string_view path) {
  const auto found = std::find_if(kFolders.begin(), kFolders.end(), [&](const Folder& folder) {
    return path.starts_with(folder.name) && path.substr(folder.name.size()).starts_with('/');
  });
  return found == kFolders.end() ? nullptr : &*found;
}

bool starts_with_any(std::string_view text, std::span<const std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

const Vendor* find_vendor(std::string_view header) {
  const auto found = std::find_if(kVendors.begin(), kVendors.end(), [&](const Vendor& vendor) {
    return starts_with_any(header, vendor.prefixes);
  });
  return found == kVendors.end() ? nullptr : &*found;
}

// The tests of a folder may use the headers that some part of the folder may use.
bool is_test_of(std::string_view path, std::string_view place) {
  return path.starts_with(fmt::format("tests/{}/", first_component(place)));
}

std::string check_vendor(std::string_view path, std::string_view header, const Vendor& vendor) {
  const bool placed = std::any_of(
      vendor.places.begin(), vendor.places.end(),
      [&](std::string_view place) { return path.starts_with(place) || is_test_of(path, place); });
  if (!placed) {
    return fmt::format("includes <{}>: headers of {} belong in {}", header, vendor.name,
                       fmt::join(vendor.places, ", "));
  }
  if (vendor.sources_only && path.ends_with(".h")) {
    return fmt::format("includes <{}>: headers of {} belong in .cc files only", header,
                       vendor.name);
  }
  return {};
}

// The headers of the C interface are installed side by side, without the tree around them.
bool is_of_installed_headers(std::string_view path, std::string_view header) {
  return path.starts_with("runtime/capi/terrace") && path.ends_with(".h") &&
         header.starts_with("terrace") && header.find('/') == std::string_view::npos;
}

std::string check_folder(std::string_view path, std::string_view header) {
  if (is_of_installed_headers(path, header)) return {};
  const Folder* from = find_folder(path);
  const Folder* to = find_folder(header);
  if (to == nullptr) {
    return fmt::format("includes \"{}\": write it from the root of the tree, or in <>", header);
  }
  if (from == nullptr || from == to || to->level < from->level) return {};
  const std::string_view why = to->level == from->level ? "a sibling" : "above it";
  return fmt::format("includes \"{}\": {} is {}, and {} includes only what is below", header,
                     to->name, why, from->name);
}

std::string check_include(std::string_view path, const Include& include) {
  const std::string_view header = include.header;
  if (const Vendor* vendor = find_vendor(header); vendor != nullptr) {
    return check_vendor(path, header, *vendor);
  }
  if (include.quoted) return check_folder(path, header);
  if (find_folder(header) != nullptr && header.ends_with(".h")) {
    return fmt::format("includes <{}>: write our own headers in quotes", header);
  }
  const bool in_folder = header.find('/') != std::string_view::npos;
  if (in_folder && !starts_with_any(header, kOpenFolders)) {
    return fmt::format("includes <{}>, of a vendor that has no place in the table", header);
  }
  return {};
}

}  // namespace

Violations check_includes(std::string_view path, std::string_view text) {
  Violations found;
  const std::string code = blank_comments(text);
  int number = 0;
  for (const std::string_view line : split_lines(code)) {
    ++number;
    const std::optional<Include> include = parse_include(line);
    if (!include) continue;
    std::string what = check_include(path, *include);
    if (!what.empty()) found.push_back({std::string(path), number, std::move(what)});
  }
  return found;
}

}  // namespace terrace::tidy
