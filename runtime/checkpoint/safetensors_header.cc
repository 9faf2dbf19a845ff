#include "runtime/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/json_depth.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

struct TypeInfo {
  std::string_view name;
  std::uint64_t bits;
};

// By SafetensorsType.
constexpr std::array<TypeInfo, 22> kTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

// Refuses a header with messages that begin with the file's name.
class Refusal {
 public:
  explicit Refusal(const std::string& origin) : origin_(origin) {}

  [[noreturn]] void header(const std::string& why) const {
    throw CorruptData(fmt::format("{}: {}", origin_, why), "fetch or write the file again");
  }
  [[noreturn]] void tensor(std::string_view name, const std::string& why) const {
    header(fmt::format("tensor {}: {}", name, why));
  }

 private:
  const std::string& origin_;
};

// A JSON object may repeat a key, and parsers then keep one of the values without a word.
class DuplicateKeys {
 public:
  // Returns the first key that was seen twice in one object.
  const std::optional<std::string>& found() const { return found_; }

  bool operator()(int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      auto key = value.get<std::string>();
      if (!open_.back().insert(key).second && !found_) found_ = std::move(key);
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> open_;
  std::optional<std::string> found_;
};

Json parse_object(std::string_view text, const Refusal& refuse) {
  // The format demands the brace first; JSON would allow spaces before it.
  if (!text.starts_with('{')) refuse.header("the header does not begin with {");
  DuplicateKeys duplicates;
  if (nests_deeper(text)) refuse.header("the header nests lists and objects too deeply");
  Json object = Json::parse(text, std::ref(duplicates), /*allow_exceptions=*/false);
  if (object.is_discarded() || !object.is_object()) refuse.header("the header is not JSON");
  if (duplicates.found()) refuse.header(fmt::format("key {} is there twice", *duplicates.found()));
  return object;
}

std::uint64_t read_size(const Json& value, std::string_view name, const Refusal& refuse) {
  if (!value.is_number_unsigned()) {
    refuse.tensor(name, fmt::format("{} is not a size", value.dump()));
  }
  return value.get<std::uint64_t>();
}

SafetensorsType read_type(const Json& value, std::string_view name, const Refusal& refuse) {
  const auto known = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeInfo& type) {
    return value.is_string() && type.name == value.get_ref<const std::string&>();
  });
  if (known == kTypes.end()) {
    refuse.tensor(name, fmt::format("dtype {} is not one of the format's", value.dump()));
  }
  return static_cast<SafetensorsType>(known - kTypes.begin());
}

// Returns the product; none when it does not fit 64 bits.
std::optional<std::uint64_t> multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

void check_size(const SafetensorsTensor& tensor, const Refusal& refuse) {
  std::optional<std::uint64_t> bits = bits_of(tensor.type);
  for (const std::uint64_t dimension : tensor.shape) {
    bits = multiply(*bits, dimension);
    if (!bits) refuse.tensor(tensor.name, "its number of elements overflows 64 bits");
  }
  if (*bits % 8 != 0) refuse.tensor(tensor.name, "its elements do not fill whole bytes");
  if (tensor.end < tensor.begin) refuse.tensor(tensor.name, "its end lies before its beginning");
  if (tensor.size_bytes() != *bits / 8) {
    refuse.tensor(tensor.name, fmt::format("its data_offsets hold {} bytes, but its shape needs {}",
                                           tensor.size_bytes(), *bits / 8));
  }
}

SafetensorsTensor read_tensor(const std::string& name, const Json& value, const Refusal& refuse) {
  if (!value.is_object()) refuse.tensor(name, "its entry is not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) refuse.tensor(name, fmt::format("{} is missing", key));
  }
  SafetensorsTensor tensor;
  tensor.name = name;
  tensor.type = read_type(value.at("dtype"), name, refuse);
  const Json& shape = value.at("shape");
  const Json& offsets = value.at("data_offsets");
  if (!shape.is_array()) refuse.tensor(name, "its shape is not a list");
  if (!offsets.is_array() || offsets.size() != 2) {
    refuse.tensor(name, "its data_offsets are not two numbers");
  }
  for (const Json& dimension : shape) tensor.shape.push_back(read_size(dimension, name, refuse));
  tensor.begin = read_size(offsets[0], name, refuse);
  tensor.end = read_size(offsets[1], name, refuse);
  check_size(tensor, refuse);
  return tensor;
}

// Files of some writers have null there; the format's own reader takes it as no metadata.
std::map<std::string, std::string> read_metadata(const Json& value, const Refusal& refuse) {
  if (value.is_null()) return {};
  if (!value.is_object()) refuse.header("__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) refuse.header(fmt::format("__metadata__ {} is not a string", key));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

void check_cover(const std::vector<SafetensorsTensor>& tensors, std::uint64_t data_bytes,
                 const Refusal& refuse) {
  std::uint64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin != end) {
      refuse.tensor(tensor.name, fmt::format("begins at {}, but the bytes before it end at {}",
                                             tensor.begin, end));
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    refuse.header(fmt::format("has {} bytes of data, but its tensors take {}", data_bytes, end));
  }
}

std::string json_string(const std::string& text) { return Json(text).dump(); }

}  // namespace

std::string_view name_of(SafetensorsType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::uint64_t bits_of(SafetensorsType type) { return kTypes[static_cast<std::size_t>(type)].bits; }

std::uint64_t SafetensorsTensor::elements() const {
  std::uint64_t count = 1;
  for (const std::uint64_t dimension : shape) count *= dimension;
  return count;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                           const std::string& origin) {
  const Refusal refuse(origin);
  const Json object = parse_object(json, refuse);
  SafetensorsHeader header;
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(value, refuse);
    } else {
      header.tensors.push_back(read_tensor(name, value, refuse));
    }
  }
  // Sorts by end too: an empty tensor comes before the one that begins at the same byte.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_cover(header.tensors, data_bytes, refuse);
  return header;
}

std::string make_safetensors_header(SafetensorsHeader& header, std::uint64_t alignment) {
  TERRACE_CHECK_EQ(alignment % 8, 0U);
  std::vector<std::string> entries;
  if (!header.metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, text] : header.metadata) {
      pairs.push_back(fmt::format("{}:{}", json_string(key), json_string(text)));
    }
    entries.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::uint64_t end = 0;
  for (SafetensorsTensor& tensor : header.tensors) {
    tensor.begin = end;
    end += tensor.elements() * bits_of(tensor.type) / 8;
    tensor.end = end;
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  json_string(tensor.name), name_of(tensor.type),
                                  fmt::join(tensor.shape, ","), tensor.begin, tensor.end));
  }
  std::string json = fmt::format("{{{}}}", fmt::join(entries, ","));
  const std::uint64_t whole = (8 + json.size() + alignment - 1) / alignment * alignment;
  json.resize(whole - 8, ' ');
  TERRACE_CHECK_LE(json.size(), kSafetensorsHeaderLimit);
  const std::uint64_t length = json.size();
  std::string front(8, '\0');
  std::memcpy(front.data(), &length, 8);
  return front + json;
}

}  // namespace terrace
