#include "runtime/checkpoint/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/half_arrays.h"
#include "runtime/checkpoint/background_appender.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/stored_values.h"
#include "runtime/model/json_text.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kFetchElements = 1 << 20;       // 4 MiB
constexpr std::int64_t kTransposeElements = 16 << 20;  // 64 MiB

// A tensor of the file, and the parameters that are its rows, in order.
struct Piece {
  const UnitLayout* unit = nullptr;
  std::vector<const ParameterTensor*> parameters = {};
  DType dtype = DType::kF32;

  const ParameterTensor& first() const { return *parameters.front(); }
  const std::string& name() const { return first().stored_name; }
  std::int64_t elements() const {
    if (!first().stored_elements) return first().stored_rows * first().columns;
    const std::vector<std::int64_t>& shape = first().stored_elements->shape;
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  std::uint64_t size_bytes() const {
    return static_cast<std::uint64_t>(elements()) * size_of(dtype);
  }
};

struct Shard {
  std::string file;
  std::uint64_t size_bytes = 0;
  std::vector<Piece> pieces;
};

// Returns the tensors of a unit, in the order of their first parameters. A vector of several
// addends is fp32, because it is in no other type what it was.
std::vector<Piece> pieces_of(const UnitLayout& unit, const WeightTypes& types) {
  std::vector<Piece> pieces;
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (const ParameterTensor& tensor : unit.tensors) {
    const DType dtype = tensor.addends > 1 ? DType::kF32 : types.of(tensor.name);
    const auto [place, is_first] = numbers.try_emplace(tensor.stored_name, pieces.size());
    TERRACE_CHECK(tensor.stored_elements || is_first == (tensor.stored_first_row == 0));
    if (is_first) pieces.push_back({.unit = &unit, .dtype = dtype});
    Piece& piece = pieces[place->second];
    piece.parameters.push_back(&tensor);
    TERRACE_CHECK(piece.dtype == dtype);
  }
  return pieces;
}

std::vector<Shard> plan_shards(const HfExportOptions& options,
                               const std::vector<UnitLayout>& layout) {
  std::vector<Shard> shards(1);
  for (const UnitLayout& unit : layout) {
    for (Piece& piece : pieces_of(unit, options.types)) {
      const std::uint64_t size = piece.size_bytes();
      const std::uint64_t present = shards.back().size_bytes;
      if (present > 0 && present + size > options.max_shard_bytes) shards.emplace_back();
      shards.back().size_bytes += size;
      shards.back().pieces.push_back(std::move(piece));
    }
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? kHfSingleFile
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

SafetensorsHeader header_of(const Shard& shard) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  for (const Piece& piece : shard.pieces) {
    SafetensorsTensor tensor;
    tensor.name = piece.name();
    tensor.type = type_in_file(piece.dtype);
    tensor.shape = stored_shape(piece.first());
    header.tensors.push_back(std::move(tensor));
  }
  return header;
}

// Streams the pieces of one export through buffers that all of them share.
class PieceWriter {
 public:
  explicit PieceWriter(FetchParameter fetch) : fetch_(fetch) {}

  void write(const Piece& piece, BackgroundAppender& file) {
    dtype_ = piece.dtype;
    name_ = piece.name();
    unit_ = piece.unit;
    if (piece.first().stored_elements) return write_spread(piece, file);
    if (piece.first().stored_transposed) return write_transposed(piece.first(), file);
    for (const ParameterTensor* tensor : piece.parameters) write_rows(*tensor, file);
  }

 private:
  std::span<const float> fetch(const ParameterTensor& tensor, std::int64_t begin,
                               std::int64_t count) {
    fetched_.resize(std::max(fetched_.size(), static_cast<std::size_t>(count)));
    const auto part = std::span(fetched_).first(static_cast<std::size_t>(count));
    fetch_(*unit_, tensor, begin, part);
    return part;
  }

  void write_rows(const ParameterTensor& tensor, BackgroundAppender& file) {
    if (tensor.addends > 1) return write_sum(tensor, file);
    const std::int64_t elements = tensor.elements();
    for (std::int64_t begin = 0; begin < elements; begin += kFetchElements) {
      append(fetch(tensor, begin, std::min(kFetchElements, elements - begin)), file);
    }
  }

  void write_sum(const ParameterTensor& tensor, BackgroundAppender& file) {
    const auto addends = fetch(tensor, 0, tensor.elements());
    std::vector<float> sums(static_cast<std::size_t>(tensor.stored_rows));
    for (std::size_t i = 0; i < addends.size(); ++i) sums[i % sums.size()] += addends[i];
    append(sums, file);
  }

  // Writes a tensor whose rows in the file are our columns. As many of them as fit the buffer are
  // gathered at a time, from all our rows.
  void write_transposed(const ParameterTensor& tensor, BackgroundAppender& file) {
    const std::int64_t rows = tensor.rows;
    const std::int64_t columns = tensor.columns;
    const std::int64_t wide = std::clamp<std::int64_t>(kTransposeElements / rows, 1, columns);
    const std::int64_t tall = std::clamp<std::int64_t>(kFetchElements / columns, 1, rows);
    std::vector<float> turned(static_cast<std::size_t>(wide * rows));
    for (std::int64_t c0 = 0; c0 < columns; c0 += wide) {
      const std::int64_t c1 = std::min(columns, c0 + wide);
      for (std::int64_t r0 = 0; r0 < rows; r0 += tall) {
        const std::int64_t r1 = std::min(rows, r0 + tall);
        const auto part = fetch(tensor, r0 * columns, (r1 - r0) * columns);
        for (std::int64_t c = c0; c < c1; ++c) {
          for (std::int64_t r = r0; r < r1; ++r) {
            turned[(c - c0) * rows + r] = part[(r - r0) * columns + c];
          }
        }
      }
      append(std::span(turned).first(static_cast<std::size_t>((c1 - c0) * rows)), file);
    }
  }

  // Writes a tensor in which the elements of its parameters lie apart. It is made in windows, in
  // the order of the file; for each of them, the parameters that have elements there are fetched. A
  // window is whole matrices of the tensor where these are not too large.
  void write_spread(const Piece& piece, BackgroundAppender& file) {
    const std::vector<std::int64_t>& shape = piece.first().stored_elements->shape;
    const std::int64_t matrix = piece.elements() / shape.front();
    const std::int64_t width = kTransposeElements / std::min(matrix, kTransposeElements) *
                               std::min(matrix, kTransposeElements);
    std::vector<float> window(static_cast<std::size_t>(std::min(width, piece.elements())));
    for (std::int64_t begin = 0; begin < piece.elements(); begin += width) {
      const std::int64_t count = std::min(width, piece.elements() - begin);
      const std::span<float> part = std::span(window).first(static_cast<std::size_t>(count));
      for (const ParameterTensor* tensor : piece.parameters) gather(*tensor, begin, part);
      append(part, file);
    }
  }

  // Sets the elements of a parameter that are in the window that begins at `begin`.
  void gather(const ParameterTensor& tensor, std::int64_t begin, std::span<float> window) {
    const StoredElements& places = *tensor.stored_elements;
    const std::int64_t end = begin + static_cast<std::int64_t>(window.size());
    const std::int64_t last = places.first + (tensor.rows - 1) * places.row_step +
                              (tensor.columns - 1) * places.column_step;
    if (places.first >= end || last < begin) return;
    const std::int64_t tall =
        std::clamp<std::int64_t>(kFetchElements / tensor.columns, 1, tensor.rows);
    for (std::int64_t r0 = 0; r0 < tensor.rows; r0 += tall) {
      const std::int64_t r1 = std::min(tensor.rows, r0 + tall);
      const auto part = fetch(tensor, r0 * tensor.columns, (r1 - r0) * tensor.columns);
      for (std::int64_t c = 0; c < tensor.columns; ++c) {
        for (std::int64_t r = r0; r < r1; ++r) {
          const std::int64_t at = places.first + r * places.row_step + c * places.column_step;
          if (at < begin || at >= end) continue;
          window[static_cast<std::size_t>(at - begin)] =
              part[static_cast<std::size_t>((r - r0) * tensor.columns + c)];
        }
      }
    }
  }

  void append(std::span<const float> values, BackgroundAppender& file) {
    if (dtype_ == DType::kF32) return file.append(std::as_bytes(values));
    narrow_.resize(static_cast<std::size_t>(kFetchElements));
    while (!values.empty()) {
      const std::size_t count = std::min(narrow_.size(), values.size());
      if (dtype_ == DType::kF16) {
        append_narrowed<Fp16>(values.first(count), file);
      } else {
        append_narrowed<Bf16>(values.first(count), file);
      }
      values = values.subspan(count);
    }
  }

  template <typename T>
  void append_narrowed(std::span<const float> values, BackgroundAppender& file) {
    const std::span<T> narrow(reinterpret_cast<T*>(narrow_.data()), values.size());
    to_parameters(values, narrow);
    if (!all_finite(std::span<const T>(narrow))) expect_held<T>(values);
    file.append(std::as_bytes(narrow));
  }

  template <typename T>
  void expect_held(std::span<const float> values) const {
    for (const float value : values) {
      if (std::isfinite(to_float(to_parameter<T>(value))) || !std::isfinite(value)) continue;
      throw ConfigError(fmt::format("tensor {} has the value {}, which {} cannot represent", name_,
                                    value, torch_name_of(dtype_)),
                        "write it as fp32 or bf16: --save-dtype of terrace train, --dtype of "
                        "terrace export");
    }
  }

  const FetchParameter fetch_;
  DType dtype_ = DType::kF32;         // of the present piece
  std::string name_;                  // of it
  const UnitLayout* unit_ = nullptr;  // of it
  std::vector<float> fetched_;
  std::vector<std::uint16_t> narrow_;
};

// Writes a shard. The next pieces are fetched while the earlier ones are written.
void write_shard(const std::string& path, const Shard& shard, PieceWriter& pieces) {
  SafetensorsWriter file(path, header_of(shard));
  {
    BackgroundAppender appender(file);
    for (const Piece& piece : shard.pieces) pieces.write(piece, appender);
    appender.finish();
  }
  file.finish();
}

void write_index(const fs::path& directory, const std::vector<Shard>& shards) {
  nlohmann::json index;  // sorts its keys
  std::uint64_t total = 0;
  for (const Shard& shard : shards) {
    total += shard.size_bytes;
    for (const Piece& piece : shard.pieces) index["weight_map"][piece.name()] = shard.file;
  }
  index["metadata"]["total_size"] = total;
  write_durable_file((directory / kHfIndexFile).string(), index.dump(2) + "\n");
}

// Returns whether a file is named as shards are. A file with another name may be the user's own.
bool is_name_of_shard(std::string_view name) {
  constexpr std::string_view kLike = "model-00000-of-00000.safetensors";
  return std::ranges::equal(name, kLike, [](char is, char like) {
    return like == '0' ? is >= '0' && is <= '9' : is == like;
  });
}

// Removes weights of an earlier export that the new one did not overwrite: they would be taken for
// a part of it.
void remove_stale(const fs::path& directory, const std::vector<Shard>& shards) {
  for (const std::string& name : system_files().list(directory.string())) {
    const bool weights = name == kHfSingleFile || is_name_of_shard(name);
    const bool written = std::any_of(shards.begin(), shards.end(),
                                     [&](const Shard& shard) { return shard.file == name; });
    if ((weights && !written) || (name == kHfIndexFile && shards.size() == 1)) {
      remove_file((directory / name).string());
    }
  }
}

void write_all(const HfExportOptions& options, const ModelConfig& config,
               const std::vector<Shard>& shards, FetchParameter fetch) {
  const fs::path directory = options.directory;
  make_directories(options.directory);
  remove_file((directory / "config.json").string());  // until all is written, this is not a model
  PieceWriter pieces(fetch);
  for (const Shard& shard : shards) {
    write_shard((directory / shard.file).string(), shard, pieces);
  }
  if (shards.size() > 1) write_index(directory, shards);
  remove_stale(directory, shards);
  write_companions(options.directory, options.companions);
  write_durable_file((directory / "config.json").string(),
                     config_json_with_dtype(config.json, options.types.usual));
  sync_directory(fs::absolute(directory).parent_path().string());  // for its name
}

}  // namespace

void write_hf_tensors(const std::string& path, const WeightTypes& types,
                      const std::vector<UnitLayout>& layout, FetchParameter fetch) {
  Shard shard;
  for (const UnitLayout& unit : layout) {
    for (Piece& piece : pieces_of(unit, types)) shard.pieces.push_back(std::move(piece));
  }
  PieceWriter pieces(fetch);
  write_shard(path, shard, pieces);
}

void write_hf_directory(const HfExportOptions& options, const ModelConfig& config,
                        const std::vector<UnitLayout>& layout, FetchParameter fetch) {
  if (config.adapter.is_there()) {
    throw ConfigError(
        fmt::format("{} has an adapter and cannot be written as a model", config.name),
        "use the adapter, the final directory of its run, and merge it with terrace merge");
  }
  write_all(options, config, plan_shards(options, layout), fetch);
}

std::string config_json_with_dtype(const std::string& json, DType dtype) {
  auto config = nlohmann::ordered_json::parse(quote_non_finite(json));
  const char* value = torch_name_of(dtype);
  bool told = false;
  bool changed = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.contains(key)) continue;
    told = true;
    changed = changed || config.at(key) != value;
    config[key] = value;
  }
  if (!told) config["torch_dtype"] = value;
  if (told && !changed) return json;
  return unquote_non_finite(config.dump(2)) + "\n";
}

}  // namespace terrace
