#include "runtime/train/adapter_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/half.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/hf_index.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/checkpoint/stored_values.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/model_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = 1 << 20;
constexpr std::int64_t kMergeElements = 1 << 20;

// A stored weight, and the parameters of its adapter: one A, and the Bs and, where there are some,
// the magnitudes of the weight's rows.
struct AdaptedWeight {
  const ParameterTensor* a = nullptr;
  std::vector<const ParameterTensor*> bs;
  std::vector<const ParameterTensor*> magnitudes;
  bool is_transposed = false;
};

// Returns the names that a stored tensor may have in the files: with and without a prefix.
std::vector<std::string> names_in_files(const std::string& stored_name) {
  std::vector<std::string> names = {stored_name};
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (stored_name.starts_with(prefix)) names.push_back(stored_name.substr(prefix.size()));
  }
  return names;
}

// Returns the adapted weights by the names that each may have in the files.
std::map<std::string, AdaptedWeight> adapted_weights(const std::vector<UnitLayout>& layout) {
  std::map<std::string, AdaptedWeight> weights;
  for (const UnitLayout& unit : layout) {
    std::map<std::string, AdaptedWeight> of_unit;
    for (const ParameterTensor& weight : unit.tensors) {
      if (!is_layer_weight(weight.kind)) continue;
      const ParameterTensor* const a = unit.find(adapter_a(weight.kind));
      const ParameterTensor* const b = unit.find(adapter_b(weight.kind));
      if (b == nullptr) continue;
      AdaptedWeight& adapted = of_unit[weight.stored_name];
      if (a != nullptr) adapted.a = a;
      adapted.bs.push_back(b);
      const ParameterTensor* const magnitudes = unit.find(adapter_magnitude(weight.kind));
      if (magnitudes != nullptr) adapted.magnitudes.push_back(magnitudes);
      adapted.is_transposed = weight.stored_transposed;
    }
    for (const auto& [name, weight] : of_unit) {
      for (const std::string& in_file : names_in_files(name)) weights[in_file] = weight;
    }
  }
  return weights;
}

// Returns the stored names of the tensors that the adapter replaces, by the names that each may
// have in the files. The files may have a tied head beside the embedding.
std::map<std::string, std::string> replaced_tensors(const ModelConfig& config) {
  std::map<std::string, std::string> replaced;
  for (const std::string& name : whole_tensors(config)) {
    for (const std::string& in_file : names_in_files(name)) replaced[in_file] = name;
  }
  if (has_whole_tied_head(config)) {
    replaced[stored_head_name(config)] = stored_embedding_name(config);
  }
  return replaced;
}

// The product of [rows, rank] and [rank, columns], which is added to a stored tensor. Where there
// are magnitudes, the rows of the sum (the columns, for a transposed tensor) are then scaled to
// have these as their norms.
struct AddedProduct {
  std::vector<float> left, right;
  std::vector<float> magnitudes;
  bool is_transposed = false;
  std::int64_t rank = 0;
  std::int64_t columns = 0;
  float scale = 1;

  // Returns the output of the layer that the number at index `i` belongs to, in rows that begin
  // with row `first`.
  std::size_t output_of(std::int64_t first, std::size_t i) const {
    const auto width = static_cast<std::size_t>(columns);
    return is_transposed ? i % width : static_cast<std::size_t>(first) + i / width;
  }
  // Adds the row of the product to `values`.
  void add_row(std::int64_t row, std::span<float> values, std::vector<float>& sums) const {
    sums.assign(values.size(), 0.0F);
    for (std::int64_t k = 0; k < rank; ++k) {
      const float factor = left[static_cast<std::size_t>(row * rank + k)];
      const float* const from = right.data() + k * columns;
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += factor * from[i];
    }
    for (std::size_t i = 0; i < sums.size(); ++i) values[i] += scale * sums[i];
  }
};

// Returns the [columns, rows] transpose of a [rows, columns] matrix.
std::vector<float> transposed(const std::vector<float>& values, std::int64_t columns) {
  const std::int64_t rows = std::ssize(values) / columns;
  std::vector<float> result(values.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      result[static_cast<std::size_t>(c * rows + r)] =
          values[static_cast<std::size_t>(r * columns + c)];
    }
  }
  return result;
}

// Returns the numbers of some parameters, one parameter after the other.
std::vector<float> numbers_of(const AdapterDirectory& adapter,
                              const std::vector<const ParameterTensor*>& parts) {
  std::vector<float> numbers;
  for (const ParameterTensor* const part : parts) {
    const std::size_t before = numbers.size();
    numbers.resize(before + static_cast<std::size_t>(part->elements()));
    adapter.read(*part, 0, std::span(numbers).subspan(before));
  }
  return numbers;
}

AddedProduct product_of(const AdapterDirectory& adapter, const AdaptedWeight& weight) {
  TERRACE_CHECK(weight.a != nullptr);
  std::vector<float> a(static_cast<std::size_t>(weight.a->elements()));
  adapter.read(*weight.a, 0, a);
  std::vector<float> b = numbers_of(adapter, weight.bs);
  AddedProduct product;
  product.magnitudes = numbers_of(adapter, weight.magnitudes);
  product.is_transposed = weight.is_transposed;
  product.rank = weight.a->rows;
  product.scale = weight.a->adapter_scale;
  const std::int64_t inputs = weight.a->columns;
  product.columns = weight.is_transposed ? std::ssize(b) / product.rank : inputs;
  if (weight.is_transposed) {
    product.left = transposed(a, inputs);
    product.right = transposed(b, product.rank);
  } else {
    product.left = std::move(b);
    product.right = std::move(a);
  }
  return product;
}

template <typename T>
std::vector<std::uint16_t> rounded(std::span<const float> values, const std::string& name) {
  std::vector<std::uint16_t> bits;
  bits.reserve(values.size());
  for (const float value : values) {
    const T narrow = to_parameter<T>(value);
    if (!std::isfinite(to_float(narrow)) && std::isfinite(value)) {
      throw ConfigError(fmt::format("tensor {} would have the value {}, which its type cannot "
                                    "represent",
                                    name, value),
                        "store the base in fp32 or bf16 first");
    }
    bits.push_back(narrow.bits);
  }
  return bits;
}

// The directory that a model is written into. While it is not finished, a file in it says so. When
// an error ends the writing, all that was written is removed again.
class MergeDirectory {
 public:
  // Creates the directory, or takes an empty one. Throws ConfigError where it has files, and
  // IoError.
  explicit MergeDirectory(const std::string& path) : path_(path) {
    FileSystem& disk = system_files();
    was_there_ = disk.exists(path);
    if (was_there_ && disk.exists(path_of(kUnfinished))) {
      throw ConfigError(
          fmt::format("{} contains part of a model: an earlier merge was not finished", path),
          fmt::format("remove it (rm -r {}), or name another directory", path));
    }
    if (was_there_ && !(fs::is_directory(path) && disk.list(path).empty())) {
      throw ConfigError(fmt::format("{} exists already and is not an empty directory", path),
                        "name another directory");
    }
    make_directories(path);
    try {
      write(kUnfinished, "");
    } catch (...) {
      clear();
      throw;
    }
  }
  ~MergeDirectory() {
    if (!is_finished_) clear();
  }
  MergeDirectory(const MergeDirectory&) = delete;
  MergeDirectory& operator=(const MergeDirectory&) = delete;

  // Returns the path of a file that is about to be written, by its name in the directory.
  std::string add(const fs::path& name) {
    written_.insert(name.begin()->string());
    return path_of(name);
  }
  void write(const fs::path& name, std::string_view content) {
    const std::string path = add(name);
    make_directories(fs::path(path).parent_path().string());
    write_durable_file(path, content);
  }
  // Marks the model as complete.
  void finish() {
    is_finished_ = true;
    remove_file(path_of(kUnfinished));
    sync_directory(path_);
    sync_directory(fs::absolute(path_).parent_path().string());
  }

 private:
  static constexpr const char* kUnfinished = ".unfinished-merge";

  std::string path_of(const fs::path& name) const { return (fs::path(path_) / name).string(); }
  void clear() noexcept {
    std::error_code ignored;
    for (const std::string& name : written_) fs::remove_all(path_of(name), ignored);
    if (!was_there_) fs::remove(path_, ignored);
  }

  const std::string path_;
  bool was_there_ = false;
  bool is_finished_ = false;
  std::set<std::string> written_;  // first parts of their names
};

// Writes the files of a base with the products of an adapter in them.
class MergedFiles {
 public:
  // `layout` is of `model`, which has the adapter. Borrows all but the model.
  MergedFiles(const std::string& base, MergeDirectory& directory, const AdapterDirectory& adapter,
              const ModelConfig& model, const std::vector<UnitLayout>& layout)
      : base_(base),
        directory_(directory),
        adapter_(adapter),
        weights_(adapted_weights(layout)),
        replaced_names_(replaced_tensors(model)) {}

  template <typename Advance>
  void write(const std::string& name, Advance advance) {
    const SafetensorsFile source((fs::path(base_) / name).string());
    SafetensorsWriter target(directory_.add(name), source.header());
    for (const SafetensorsTensor& tensor : source.header().tensors) {
      const auto found = weights_.find(tensor.name);
      const auto other = replaced_names_.find(tensor.name);
      if (found != weights_.end()) {
        merge(source, tensor, product_of(adapter_, found->second), target);
        ++merged_;
      } else if (other != replaced_names_.end()) {
        replace(other->second, tensor, target);
        ++replaced_;
      } else {
        copy(source, tensor, target);
      }
      advance(tensor.size_bytes());
    }
    target.finish();
  }
  // Return the numbers of tensors that the adapter was merged into, and that it replaced.
  std::size_t merged() const { return merged_; }
  std::size_t replaced() const { return replaced_; }

 private:
  void copy(const SafetensorsFile& source, const SafetensorsTensor& tensor,
            SafetensorsWriter& target) {
    for (std::uint64_t at = 0; at < tensor.size_bytes(); at += kCopyBytes) {
      bytes_.resize(std::min(kCopyBytes, tensor.size_bytes() - at));
      source.read(tensor, at, bytes_);
      target.append(bytes_);
    }
  }

  // Writes the adapter's values of a tensor of a whole module.
  void replace(const std::string& stored_name, const SafetensorsTensor& tensor,
               SafetensorsWriter& target) {
    const auto elements = static_cast<std::int64_t>(tensor.elements());
    for (std::int64_t first = 0; first < elements; first += kMergeElements) {
      values_.resize(static_cast<std::size_t>(std::min(kMergeElements, elements - first)));
      adapter_.read_stored(stored_name, first, values_);
      append(tensor, target);
    }
  }

  void merge(const SafetensorsFile& source, const SafetensorsTensor& tensor,
             const AddedProduct& product, SafetensorsWriter& target) {
    const std::vector<float> factors = factors_of(source, tensor, product);
    for_each_piece(source, tensor, product, [&](std::int64_t first) {
      if (!factors.empty()) multiply(factors, product, first);
      append(tensor, target);
    });
  }

  // Returns, for each output of the layer, its magnitude divided by the norm of the sum. Empty
  // where there are no magnitudes.
  std::vector<float> factors_of(const SafetensorsFile& source, const SafetensorsTensor& tensor,
                                const AddedProduct& product) {
    if (product.magnitudes.empty()) return {};
    std::vector<double> squares(product.magnitudes.size());
    for_each_piece(source, tensor, product, [&](std::int64_t first) {
      for (std::size_t i = 0; i < values_.size(); ++i) {
        squares[product.output_of(first, i)] += static_cast<double>(values_[i]) * values_[i];
      }
    });
    std::vector<float> factors;
    for (std::size_t i = 0; i < squares.size(); ++i) {
      const double norm = std::sqrt(squares[i]);
      factors.push_back(norm > 0 ? static_cast<float>(product.magnitudes[i] / norm) : 0.0F);
    }
    return factors;
  }

  void multiply(const std::vector<float>& factors, const AddedProduct& product,
                std::int64_t first) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] *= factors[product.output_of(first, i)];
    }
  }

  // Calls visit(first row) for one piece of the sum's rows after the other; the piece is in
  // values_.
  template <typename Visit>
  void for_each_piece(const SafetensorsFile& source, const SafetensorsTensor& tensor,
                      const AddedProduct& product, Visit visit) {
    const std::int64_t columns = product.columns;
    const auto rows = static_cast<std::int64_t>(tensor.elements()) / columns;
    const std::int64_t tall = std::max<std::int64_t>(1, kMergeElements / columns);
    for (std::int64_t first = 0; first < rows; first += tall) {
      const std::int64_t count = std::min(tall, rows - first);
      values_.resize(static_cast<std::size_t>(count * columns));
      read_values(source, tensor, first * columns, values_);
      for (std::int64_t row = 0; row < count; ++row) {
        const auto begin = static_cast<std::size_t>(row * columns);
        product.add_row(first + row,
                        std::span(values_).subspan(begin, static_cast<std::size_t>(columns)),
                        sums_);
      }
      visit(first);
    }
  }

  void append(const SafetensorsTensor& tensor, SafetensorsWriter& target) {
    if (tensor.type == SafetensorsType::kF32) {
      return target.append(std::as_bytes(std::span(values_)));
    }
    const std::vector<std::uint16_t> bits = tensor.type == SafetensorsType::kF16
                                                ? rounded<Fp16>(values_, tensor.name)
                                                : rounded<Bf16>(values_, tensor.name);
    target.append(std::as_bytes(std::span(bits)));
  }

  const std::string& base_;
  MergeDirectory& directory_;
  const AdapterDirectory& adapter_;
  const std::map<std::string, AdaptedWeight> weights_;
  const std::map<std::string, std::string> replaced_names_;
  std::size_t merged_ = 0;
  std::size_t replaced_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
  std::vector<float> sums_;
};

// Names of the files with the base's weights, and whether an index names them.
struct BaseFiles {
  std::vector<std::string> names;
  bool is_indexed = false;
};

BaseFiles files_of(const std::string& base) {
  std::error_code ignored;
  if (fs::is_regular_file(fs::path(base) / kHfSingleFile, ignored)) return {{kHfSingleFile}};
  const auto files = read_hf_index(base).files();
  return {{files.begin(), files.end()}, true};
}

// Returns the ranks of an adapter's layers, as words.
std::string ranks_of(const std::vector<UnitLayout>& layout) {
  std::set<std::int64_t> ranks;
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& weight : unit.tensors) {
      if (!is_layer_weight(weight.kind)) continue;
      const ParameterTensor* const a = unit.find(adapter_a(weight.kind));
      if (a != nullptr) ranks.insert(a->rows);
    }
  }
  if (ranks.size() == 1) return fmt::format("rank {}", *ranks.begin());
  return fmt::format("ranks {} to {}", *ranks.begin(), *ranks.rbegin());
}

// Refuses a checkpoint: it keeps the adapter in fp32 beside its optimizer state, and has no
// adapter_config.json.
void refuse_checkpoint(const std::string& path) {
  if (!is_checkpoint(path)) return;
  const bool has_adapter = Checkpoint(path).model().adapter.is_there();
  throw ConfigError(
      fmt::format("{} is a checkpoint, {}", path,
                  has_adapter ? "not an adapter directory" : "and does not contain an adapter"),
      has_adapter ? fmt::format("export its adapter first with terrace export {} DIR, then merge "
                                "DIR",
                                path)
                  : "give an adapter directory as PEFT saves it, or the final directory of a run "
                    "with --lora-rank");
}

}  // namespace

void merge_adapter(const AdapterMerge& request, TrainConsole& console, Log& log) {
  refuse_checkpoint(request.adapter);
  const std::string base_directory = directory_of_model(request.base);
  const AdapterDirectory adapter(request.adapter);
  const ModelConfig model =
      adapter.adapted(load_model_config(base_directory, request.ignored_config_keys));
  const std::vector<UnitLayout> layout = parameter_layout(model);
  const HfDirectory base(base_directory, model, layout, log);  // all of it is there
  const BaseFiles files = files_of(base_directory);
  std::uint64_t total = 0;
  for (const std::string& name : files.names) {
    total += fs::file_size(fs::path(base_directory) / name);
  }
  const std::string doubt = doubt_about_base(adapter, base_directory);
  if (!doubt.empty()) log.warning(doubt);
  MergeDirectory target(request.directory);
  MergedFiles merged(base_directory, target, adapter, model, layout);
  {
    ConsolePhase phase(console, "merging");
    std::uint64_t done = 0;
    for (const std::string& name : files.names) {
      merged.write(name, [&](std::uint64_t bytes) {
        done += bytes;
        phase.advance(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
      });
    }
  }
  const auto copy = [&](const char* name) {
    target.write(name, read_whole_file(system_files(), (fs::path(base_directory) / name).string()));
  };
  if (files.is_indexed) copy(kHfIndexFile);
  for (const HfCompanion& companion :
       read_hf_companions(base_directory, CompanionScope::kAll, log)) {
    target.write(companion.name, companion.content);
  }
  copy("config.json");
  target.finish();
  console.say(fmt::format(
      "{}: merged the adapter into {} tensors, {}{}", request.directory, merged.merged(),
      ranks_of(layout),
      merged.replaced() == 0 ? "" : fmt::format(", and replaced {} others", merged.replaced())));
}

}  // namespace terrace
