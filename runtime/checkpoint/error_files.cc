#include "runtime/checkpoint/error_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/bytes.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/json_number.h"

namespace terrace {
namespace {

// Errors are fetched in pieces of this many bytes.
constexpr std::uint64_t kPieceBytes = 4 * kMiB;
// The most ranks that a correct manifest has.
constexpr std::int32_t kRanksMax = 1 << 20;

std::int32_t parse_ranks(const nlohmann::json& listed, const char* key) {
  const auto ranks = whole_number<std::int32_t>(listed.at(key));
  if (ranks >= 1 && ranks <= kRanksMax) return ranks;
  throw std::invalid_argument(fmt::format("{} of gradient errors is {}", key, ranks));
}

// Throws std::invalid_argument where these are more ranks than a run can have.
void check_ranks(const GradientErrors& errors) {
  const auto stages = static_cast<std::int64_t>(errors.stage_bytes.size());
  const std::int64_t ranks = std::int64_t{errors.data_ranks} * errors.tensor_ranks;
  if (stages >= 1 && ranks <= kRanksMax / stages) return;
  throw std::invalid_argument(
      fmt::format("gradient errors of {} pipeline stages with {} ranks each", stages, ranks));
}

FileHashes write_file(const std::string& path, const CheckpointedErrors& errors, std::int32_t rank,
                      FileSystem& disk) {
  FileHasher hasher;
  hasher.end_header();  // it has none
  DurableFile file(path, disk);
  std::vector<std::byte> piece;
  const std::uint64_t size = errors.of.bytes_of_rank(rank);
  for (std::uint64_t at = 0; at < size; at += piece.size()) {
    piece.resize(std::min(kPieceBytes, size - at));
    errors.fetch(rank, at, piece);
    hasher.add(piece);
    file.append(piece);
  }
  file.commit();
  return hasher.finish();
}

// Calls visit() with the ranks that have errors, in their order.
template <typename Visit>
void for_each_rank(const GradientErrors& errors, Visit visit) {
  for (std::int32_t stage = 0; stage < errors.pipeline_stages(); ++stage) {
    if (errors.stage_bytes.at(static_cast<std::size_t>(stage)) == 0) continue;
    for (std::int32_t i = 0; i < errors.ranks_of_stage(); ++i) {
      visit(stage * errors.ranks_of_stage() + i);
    }
  }
}

}  // namespace

std::string to_json(const GradientErrors& errors) {
  return nlohmann::json{
      {"data_ranks", errors.data_ranks},           {"tensor_ranks", errors.tensor_ranks},
      {"virtual_stages", errors.virtual_stages},   {"piece_begins", errors.piece_begins},
      {"chunks_xxh3", to_hex(errors.chunks_hash)}, {"stage_bytes", errors.stage_bytes}}
      .dump();
}

GradientErrors parse_gradient_errors(const std::string& json) {
  const auto listed = nlohmann::json::parse(json);
  GradientErrors errors;
  errors.data_ranks = parse_ranks(listed, "data_ranks");
  errors.tensor_ranks = parse_ranks(listed, "tensor_ranks");
  errors.virtual_stages = parse_ranks(listed, "virtual_stages");
  for (const auto& begin : listed.at("piece_begins")) {
    errors.piece_begins.push_back(whole_number<std::int32_t>(begin));
  }
  errors.chunks_hash = from_hex(listed.at("chunks_xxh3").get<std::string>());
  for (const auto& bytes : listed.at("stage_bytes")) {
    errors.stage_bytes.push_back(whole_number<std::uint64_t>(bytes));
  }
  check_ranks(errors);
  return errors;
}

std::string error_file_name(std::int32_t rank) { return fmt::format("errors-{:05}.bin", rank); }

void check_error_files(const GradientErrors& errors, const std::vector<ListedFile>& files) {
  for_each_rank(errors, [&](std::int32_t rank) {
    const std::string name = error_file_name(rank);
    const auto file = std::ranges::find(files, name, &ListedFile::name);
    if (file != files.end() && file->hashes.size_bytes == errors.bytes_of_rank(rank)) return;
    throw std::invalid_argument(
        fmt::format("{} of {} bytes is not listed", name, errors.bytes_of_rank(rank)));
  });
}

std::uint64_t error_files_bytes(const GradientErrors& errors) {
  constexpr std::uint64_t kBytesOfFile = 16 * 1024;  // its part of the manifest, blocks
  constexpr std::uint64_t kBytesOfChecksum = 16;
  std::uint64_t bytes = 0;
  for_each_rank(errors, [&](std::int32_t rank) {
    const std::uint64_t data = errors.bytes_of_rank(rank);
    bytes += data + (data / kHashPieceBytes + 2) * kBytesOfChecksum + kBytesOfFile;
  });
  return bytes;
}

std::vector<ListedFile> write_error_files(const std::string& directory,
                                          const CheckpointedErrors& errors, FileSystem& disk) {
  std::vector<ListedFile> files;
  for_each_rank(errors.of, [&](std::int32_t rank) {
    const std::string name = error_file_name(rank);
    const std::string path = (std::filesystem::path(directory) / name).string();
    files.push_back({name, write_file(path, errors, rank, disk)});
  });
  return files;
}

}  // namespace terrace
