#include "runtime/compare/hash_file.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json_depth.h"
#include "runtime/checkpoint/durable_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using Document = nlohmann::ordered_json;

// A block is its tag, the bytes of its payload (u64), the payload, and the checksum of all that
// (u64). Numbers are little-endian, as on every machine that Terrace runs on.
constexpr std::string_view kTableTag = "TERRKEYS";
constexpr std::string_view kRowTag = "TERRSTEP";
constexpr std::size_t kHead = 16;
constexpr std::size_t kFrame = kHead + 8;
constexpr std::string_view kPrefix = "rank-";
constexpr std::string_view kSuffix = ".bin";

constexpr auto kColumns =
    std::to_array<const char*>({"op", "unit", "group", "micro_batch", "use", "pass_step", "chunk",
                                "data_rank", "tensor_rank", "is_output", "value", "number"});

template <typename T>
void append_number(std::string& text, T number) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &number, sizeof(T));
  text.append(bytes.data(), bytes.size());
}

template <typename T>
T number_at(std::string_view text, std::size_t at) {
  T number = 0;
  std::memcpy(&number, text.data() + at, sizeof(T));
  return number;
}

std::uint64_t checksum(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

Document to_json(const HashedModel& model) {
  return {{"data_ranks", model.data_ranks},         {"tensor_ranks", model.tensor_ranks},
          {"shares_rows", model.shares_rows},       {"micro_batches", model.micro_batches},
          {"tokens_bytes", model.tokens_bytes},     {"hidden_bytes", model.hidden_bytes},
          {"chunk_elements", model.chunk_elements}, {"compute_type", model.compute_type},
          {"gradient_type", model.gradient_type},   {"units", model.units},
          {"group_elements", model.group_elements}, {"group_units", model.group_units}};
}

HashedModel model_from(const Document& json) {
  HashedModel model;
  json.at("data_ranks").get_to(model.data_ranks);
  json.at("tensor_ranks").get_to(model.tensor_ranks);
  json.at("shares_rows").get_to(model.shares_rows);
  json.at("micro_batches").get_to(model.micro_batches);
  json.at("tokens_bytes").get_to(model.tokens_bytes);
  json.at("hidden_bytes").get_to(model.hidden_bytes);
  json.at("chunk_elements").get_to(model.chunk_elements);
  json.at("compute_type").get_to(model.compute_type);
  json.at("gradient_type").get_to(model.gradient_type);
  json.at("units").get_to(model.units);
  json.at("group_elements").get_to(model.group_elements);
  json.at("group_units").get_to(model.group_units);
  if (model.group_units.size() != model.group_elements.size()) {
    throw std::runtime_error("its groups have no units");
  }
  return model;
}

// Returns the table as JSON. Ops and values are numbers of lists of names.
std::string to_text(const HashTable& table) {
  Document keys = Document::array();
  std::map<std::string, std::size_t> numbers;
  Document values = Document::array();
  for (const HashKey& key : table.keys) {
    const auto [found, is_new] = numbers.try_emplace(key.value, numbers.size());
    if (is_new) values.push_back(key.value);
    keys.push_back({static_cast<int>(key.op), key.unit, key.group, key.micro_batch, key.use,
                    key.pass_step, key.chunk, key.data_rank, key.tensor_rank, key.is_output ? 1 : 0,
                    found->second, key.number});
  }
  Document ops = Document::array();
  for (std::size_t op = 0; op < kHashedOps; ++op) ops.push_back(name_of(static_cast<HashedOp>(op)));
  const Document document = {{"schema", "terrace.hashes/1"},
                             {"ranks", table.ranks},
                             {"model", to_json(table.model)},
                             {"ops", ops},
                             {"values", values},
                             {"columns", kColumns},
                             {"keys", keys}};
  return document.dump();
}

HashTable table_from(std::string_view text) {
  if (nests_deeper(text)) throw std::runtime_error("it nests too deeply");
  const Document document = Document::parse(text);
  HashTable table;
  document.at("ranks").get_to(table.ranks);
  table.model = model_from(document.at("model"));
  const auto values = document.at("values").get<std::vector<std::string>>();
  for (const Document& row : document.at("keys")) {
    const auto of = row.get<std::array<std::int32_t, kColumns.size()>>();
    const auto op = static_cast<std::size_t>(of[0]);
    if (op >= kHashedOps) throw std::runtime_error("it has an unknown kind of op");
    table.keys.push_back({static_cast<HashedOp>(op), of[1], of[2], of[3], of[4], of[5], of[6],
                          of[7], of[8], of[9] != 0, values.at(static_cast<std::size_t>(of[10])),
                          of[11]});
  }
  return table;
}

// A whole block of a file.
struct Block {
  std::string_view tag;
  std::string_view payload;
  std::size_t end = 0;  // in the file
};

// Returns the block at an offset; none where the rest of the file is torn.
std::optional<Block> block_at(std::string_view file, std::size_t at) {
  if (file.size() - at < kFrame) return std::nullopt;
  const auto size = number_at<std::uint64_t>(file, at + 8);
  if (size > file.size() - at - kFrame) return std::nullopt;
  const Block block{file.substr(at, 8), file.substr(at + kHead, size), at + kFrame + size};
  const auto stored = number_at<std::uint64_t>(file, block.end - 8);
  if (stored != checksum(file.substr(at, kHead + size))) return std::nullopt;
  return block;
}

std::int64_t step_of(const Block& row) {
  return row.payload.size() < 8 ? 0 : number_at<std::int64_t>(row.payload, 0);
}

void add_block(const Block& block, RecordedHashes& found) {
  if (block.tag == kTableTag) found.tables.push_back(table_from(block.payload));
  if (block.tag != kRowTag) return;
  const std::size_t keys = found.tables.empty() ? 0 : found.tables.back().keys.size();
  if (block.payload.size() != 8 + keys * 8) throw std::runtime_error("a row has another size");
  RecordedHashes::Row row{found.tables.size() - 1, std::vector<std::uint64_t>(keys)};
  std::memcpy(row.hashes.data(), block.payload.data() + 8, keys * 8);
  found.rows[step_of(block)] = std::move(row);
}

void keep_up_to(const std::string& path, std::int64_t last_step) {
  const std::string file = read_whole_file(system_files(), path);
  std::string kept;
  std::size_t at = 0;
  while (const std::optional<Block> block = block_at(file, at)) {
    const bool is_later = block->tag == kRowTag && step_of(*block) > last_step;
    if (!is_later) kept += file.substr(at, block->end - at);
    at = block->end;
  }
  if (kept.size() != file.size()) write_durable_file(path, kept);
}

}  // namespace

std::string hash_directory(const std::string& run_dir) {
  return (fs::path(run_dir) / "hashes").string();
}

std::string hash_path(const std::string& run_dir, int rank) {
  return (fs::path(hash_directory(run_dir)) / fmt::format("{}{}{}", kPrefix, rank, kSuffix))
      .string();
}

std::map<int, std::string> hash_paths(const std::string& run_dir) {
  std::map<int, std::string> paths;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(hash_directory(run_dir), none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    int rank = -1;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), rank);
    if (rank >= 0) paths[rank] = entry.path().string();
  }
  return paths;
}

void drop_hashes_after(const std::string& run_dir, std::int64_t last_step) {
  const std::string directory = hash_directory(run_dir);
  std::error_code error;
  if (!fs::exists(directory, error)) return;
  if (last_step > 0) {
    for (const auto& [rank, path] : hash_paths(run_dir)) keep_up_to(path, last_step);
    return;
  }
  const std::string before = directory + ".before";
  fs::remove_all(before, error);
  fs::rename(directory, before, error);
  if (!error) return;
  throw IoError({.operation = "rename", .path = directory, .error_number = error.value()},
                "remove it, or give another --run-dir");
}

// --- writing ------------------------------------------------------------------------------------

HashFile::HashFile(std::string run_dir, int rank)
    : run_dir_(std::move(run_dir)), path_(hash_path(run_dir_, rank)) {}

void HashFile::describe(const HashTable& table) {
  table_ = to_text(table);
  values_ = table.keys.size();
  hashed_bytes_ = table.bytes;
}

std::string HashFile::describe_cost() const {
  return fmt::format("hashes of {} values a step go to {}: {} are read for them and {} written",
                     values_, hash_directory(run_dir_),
                     format_size(static_cast<std::size_t>(hashed_bytes_)),
                     format_size(values_ * sizeof(std::uint64_t)));
}

void HashFile::open() {
  std::error_code error;
  fs::create_directories(hash_directory(run_dir_), error);
  stream_.open(path_, std::ios::app | std::ios::binary);
  if (!stream_) throw IoError({.operation = "open", .path = path_, .error_number = errno});
  write_block(kTableTag, table_);
  table_.clear();
}

void HashFile::add(std::int64_t step, std::span<const std::uint64_t> hashes) {
  if (!stream_.is_open()) open();
  std::string row;
  append_number(row, step);
  row.append(reinterpret_cast<const char*>(hashes.data()), hashes.size_bytes());
  write_block(kRowTag, row);
  stream_ << std::flush;
  if (stream_) return;
  throw IoError({.operation = "write", .path = path_, .error_number = errno},
                "free space in the run directory, or leave --record-hashes out");
}

void HashFile::write_block(std::string_view tag, std::string_view payload) {
  std::string block(tag);
  append_number(block, static_cast<std::uint64_t>(payload.size()));
  block += payload;
  append_number(block, checksum(block));
  stream_ << block;
}

// --- reading ------------------------------------------------------------------------------------

RecordedHashes read_hash_file(const std::string& path) {
  const std::string file = read_whole_file(system_files(), path);
  RecordedHashes found;
  std::size_t at = 0;
  try {
    while (const std::optional<Block> block = block_at(file, at)) {
      add_block(*block, found);
      at = block->end;
    }
  } catch (const std::exception& problem) {
    throw CorruptData(fmt::format("{} is no file of hashes: {}", path, problem.what()),
                      "remove it; the runs are then compared by metrics.jsonl");
  }
  found.dropped_bytes = file.size() - at;
  return found;
}

}  // namespace terrace
