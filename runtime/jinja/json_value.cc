#include "runtime/jinja/json_value.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_depth.h"
#include "runtime/jinja/errors.h"

namespace terrace::jinja {
namespace {

using Json = nlohmann::json;

// Builds the value while the parser reads, so that the keys keep their order.
class ValueBuilder final : public nlohmann::json_sax<Json> {
 public:
  ValueBuilder(const std::string& place, LargeNumbers large) : place_(place), large_(large) {}

  Value take() { return std::move(done_); }

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value(value)); }
  bool number_integer(number_integer_t value) override { return add(Value(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > INT64_MAX) return add_large(static_cast<double>(value), fmt::format("{}", value));
    return add(Value(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos) return add_large(value, text);
    return add(Value(value));
  }
  bool string(string_t& text) override { return add(Value(std::move(text))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    open_.push_back({.is_object = true, .key = "", .mapping = {}, .items = {}});
    return true;
  }
  bool key(string_t& text) override {
    open_.back().key = std::move(text);
    return true;
  }
  bool end_object() override {
    Value value(std::move(open_.back().mapping));
    open_.pop_back();
    return add(std::move(value));
  }
  bool start_array(std::size_t) override {
    open_.push_back({.is_object = false, .key = "", .mapping = {}, .items = {}});
    return true;
  }
  bool end_array() override {
    Value value = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& problem) override {
    const std::string what = problem.what();
    constexpr std::size_t kLongest = 200;
    const std::size_t column = what.find("column ");
    const std::size_t begin = column == std::string::npos ? what.find("] ") + 2 : column;
    const std::size_t end = what.find("; last read", begin);
    throw CorruptData(fmt::format("{}: not JSON: {}", place_,
                                  what.substr(begin, std::min(kLongest, end - begin))),
                      "NaN, Infinity and halves of surrogate pairs are not valid JSON");
  }

 private:
  // An object or array whose end is not read yet.
  struct Open {
    bool is_object;
    std::string key;
    Mapping mapping;
    std::vector<Value> items;
  };

  bool add(Value value) {
    if (open_.empty()) {
      done_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().mapping.set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool add_large(double value, const std::string& number) {
    if (large_ == LargeNumbers::kRounded) return add(Value(value));
    throw CorruptData(
        fmt::format("{}: the whole number {} does not fit in 64 bits", place_, number),
        "write it as a text, in quotation marks");
  }

  const std::string& place_;
  const LargeNumbers large_;
  std::vector<Open> open_;
  Value done_;
};

constexpr const char* kSmaller = "split it into smaller ones";

}  // namespace

Value parse_json_value(std::string_view text, const std::string& place, LargeNumbers large) {
  if (nests_deeper(text)) {
    throw CorruptData(
        fmt::format("{}: lists and objects are nested more than {} deep", place, kJsonLevels),
        "nest them less deep");
  }
  ValueBuilder builder(place, large);
  Value value;
  try {
    Json::sax_parse(text, &builder);
    value = builder.take();
  } catch (const RenderError& error) {
    throw CorruptData(fmt::format("{}: {}", place, error.what()), kSmaller);
  }
  // Less than a list may have, so that lists can be made of such values.
  constexpr std::uint64_t kWorkMax = std::uint64_t{1} << 23;
  if (value.extent().work > kWorkMax) {
    throw CorruptData(fmt::format("{}: it has more than {} parts, a part being a value or 16 bytes "
                                  "of text",
                                  place, kWorkMax),
                      kSmaller);
  }
  return value;
}

}  // namespace terrace::jinja
