#include "runtime/machine/machine_toml.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/nearest_name.h"
#include "runtime/config/toml_text.h"

namespace terrace {
namespace {

constexpr std::string_view kSchema = "terrace.machine/1";
constexpr std::string_view kProductCurve = "product_curve";
constexpr std::string_view kNotKnown = "not known";

class MachineReader {
 public:
  MachineReader(const std::string& origin, const toml::table& keys)
      : origin_(origin), keys_(keys) {}

  Machine read() const {
    if (text("schema") != kSchema) {
      refuse("schema", fmt::format("is not \"{}\"", kSchema), "is this a machine's profile?");
    }
    check_keys();
    Machine machine;
    machine.name = text("name");
    machine.about = keys_.contains("about") ? text("about") : std::string();
    machine.devices = devices();
    machine.device_speeds = device_speeds(machine.devices);
    for (std::size_t i = 0; i < kMachineFigures; ++i) {
      machine.figures.at(i) = figure(kMachineFigureTraits.at(i));
    }
    machine.product_curve = product_curve();
    return machine;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const std::string& what,
                           const std::string& remedy) const {
    throw ConfigError(fmt::format("{}: {} {}", origin_, key, what), remedy);
  }

  void check_keys() const {
    std::vector<std::string_view> known = {"schema",  "name",          "about",
                                           "devices", "device_speeds", kProductCurve};
    for (const MachineFigureTraits& traits : kMachineFigureTraits) known.push_back(traits.key);
    for (const auto& [key, node] : keys_) {
      if (std::ranges::find(known, key.str()) != known.end()) continue;
      const std::string nearest = nearest_name(key.str(), known);
      refuse(key.str(), "is not a key of a machine's profile",
             nearest.empty() ? "take it out" : fmt::format("did you mean {}?", nearest));
    }
  }

  std::string text(std::string_view key) const {
    const toml::node* const node = keys_.get(key);
    if (node == nullptr) refuse(key, "is missing", fmt::format("add {} = \"...\"", key));
    if (!node->is_string()) refuse(key, "is not a text", fmt::format("write {} = \"...\"", key));
    return node->as_string()->get();
  }

  std::int32_t devices() const {
    constexpr std::int64_t kMost = 65536;
    const toml::node* const node = keys_.get("devices");
    const std::int64_t count =
        node != nullptr && node->is_integer() ? node->as_integer()->get() : -1;
    if (count >= 0 && count <= kMost) return static_cast<std::int32_t>(count);
    refuse("devices", "is not the number of accelerators of a node",
           "write a whole number; 0 if the processors compute");
  }

  std::vector<double> device_speeds(std::int32_t devices) const {
    const toml::node* const node = keys_.get("device_speeds");
    std::vector<double> speeds;
    if (node == nullptr) return speeds;
    if (devices == 0) refuse("device_speeds", "is given, but devices is 0", "take it out");
    if (const toml::array* const list = node->as_array()) {
      for (const toml::node& entry : *list) {
        const double speed = entry.value<double>().value_or(0);
        if (speed >= kLeastDeviceSpeed && speed <= 1) speeds.push_back(speed);
      }
      if (speeds.size() == list->size() && std::cmp_equal(speeds.size(), devices)) return speeds;
    }
    refuse("device_speeds",
           fmt::format("is not a list of {} numbers from {} to 1", devices, kLeastDeviceSpeed),
           "write the speed of each of a node's devices, as a share of the profile's figures");
  }

  std::optional<Figure> figure(const MachineFigureTraits& traits) const {
    const toml::node* const node = keys_.get(traits.key);
    if (node == nullptr) return std::nullopt;
    if (node->is_string() && node->as_string()->get() == kNotKnown) return std::nullopt;
    Figure figure;
    const toml::node* number = node;
    if (const toml::table* const table = node->as_table()) {
      for (const auto& [part, value] : *table) {
        const bool is_text = part == "source" || part == "date";
        if (part != "value" && !(is_text && value.is_string())) {
          refuse(traits.key, fmt::format("has {}", std::string(part.str())),
                 "a figure has a value, and may have a source and a date, which are texts");
        }
        if (part == "source") figure.source = value.as_string()->get();
        if (part == "date") figure.date = value.as_string()->get();
      }
      number = table->get("value");
    }
    const std::optional<double> value = number == nullptr ? std::nullopt : number->value<double>();
    if (!value || !std::isfinite(*value) || *value <= traits.smallest || *value > traits.largest) {
      refuse(traits.key, "is not a possible figure",
             fmt::format("write a number above {} and at most {}, a table {{ value = ..., source = "
                         "\"...\", date = \"...\" }}, or \"{}\"",
                         traits.smallest, traits.largest, kNotKnown));
    }
    figure.value = *value;
    return figure;
  }

  std::vector<ProductSpeed> product_curve() const {
    const toml::node* const node = keys_.get(kProductCurve);
    std::vector<ProductSpeed> curve;
    if (node == nullptr || (node->is_string() && node->as_string()->get() == kNotKnown)) {
      return curve;
    }
    const toml::array* const points = node->as_array();
    const std::size_t count = points == nullptr ? 0 : points->size();
    for (std::size_t i = 0; i < count; ++i) {
      const toml::array* const point = points->get(i)->as_array();
      if (point == nullptr || point->size() != 2) break;
      const double flops = point->get(0)->value<double>().value_or(0);
      const double share = point->get(1)->value<double>().value_or(0);
      const double least = curve.empty() ? 0 : curve.back().flops;
      if (!std::isfinite(flops) || flops <= least || !(share > 0 && share <= 1)) break;
      curve.push_back({flops, share});
    }
    if (curve.size() == count && count > 0) return curve;
    const std::string what = count == 0
                                 ? "is not a list of points"
                                 : fmt::format("has a point {} that cannot be", curve.size() + 1);
    refuse(kProductCurve, what,
           fmt::format("write [[FLOPs, share], ...] by ascending FLOPs, each share above 0 and at "
                       "most 1, or \"{}\"",
                       kNotKnown));
  }

  const std::string& origin_;
  const toml::table& keys_;
};

std::string curve_text(const std::vector<ProductSpeed>& curve) {
  if (curve.empty()) return fmt::format("{} = \"{}\"\n", kProductCurve, kNotKnown);
  std::vector<std::string> points;
  for (const ProductSpeed& point : curve) {
    points.push_back(fmt::format("[{}, {}]", toml_number(point.flops), toml_number(point.share)));
  }
  return fmt::format("{} = [{}]\n", kProductCurve, fmt::join(points, ", "));
}

}  // namespace

Machine parse_machine(const std::string& text, const std::string& origin) {
  try {
    const toml::table keys = toml::parse(text, origin);
    return MachineReader(origin, keys).read();
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}, line {}: {}", origin, error.source().begin.line,
                                  std::string(error.description())),
                      "correct the line; the file is TOML");
  }
}

std::string to_toml(const Machine& machine) {
  std::string text =
      fmt::format("schema = \"{}\"\nname = {}\nabout = {}\ndevices = {}\n", kSchema,
                  toml_string(machine.name), toml_string(machine.about), machine.devices);
  if (!machine.device_speeds.empty()) {
    text += fmt::format("device_speeds = {}\n", toml_numbers(machine.device_speeds));
  }
  for (std::size_t i = 0; i < kMachineFigures; ++i) {
    const std::optional<Figure>& figure = machine.figures.at(i);
    const std::string_view key = kMachineFigureTraits.at(i).key;
    if (!figure) {
      text += fmt::format("{} = \"{}\"\n", key, kNotKnown);
    } else if (figure->source.empty() && figure->date.empty()) {
      text += fmt::format("{} = {}\n", key, toml_number(figure->value));
    } else {
      text += fmt::format("{} = {{ value = {}, source = {}, date = {} }}\n", key,
                          toml_number(figure->value), toml_string(figure->source),
                          toml_string(figure->date));
    }
  }
  return text + curve_text(machine.product_curve);
}

}  // namespace terrace
