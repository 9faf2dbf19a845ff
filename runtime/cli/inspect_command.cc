#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/bytes.h"
#include "runtime/cli/commands.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/version.h"
#include "runtime/train/inspection.h"

namespace terrace {
namespace {

using Document = nlohmann::ordered_json;

constexpr auto kInspectOperands = std::to_array<std::string_view>({"PATH"});
constexpr CommandSpec kInspectCommand = {"terrace inspect",
                                         "Describes a run directory, checkpoint, model or adapter "
                                         "directory, safetensors file, trace or data file. Reads "
                                         "only headers and changes nothing.",
                                         kInspectOperands};

enum : std::size_t { kInspectFormat, kInspectJson };
constexpr auto kInspectFlags = std::to_array<FlagSpec>({
    {"data-format", "Data", "FORMAT", "Format of a data file, as for terrace train (auto)"},
    {"json", "Output", "", "Print one JSON document instead of lines", FlagArity::kSwitch},
});

std::string text_of(const Document& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const Document& part : value) parts.push_back(text_of(part));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string line_of_tensor(const Document& tensor) {
  std::vector<std::string> sides;
  for (const Document& side : tensor["shape"]) sides.push_back(side.dump());
  std::string line =
      fmt::format("  {}  {}", tensor["name"].get<std::string>(), fmt::join(sides, " x "));
  if (tensor.contains("type")) line += "  " + tensor["type"].get<std::string>();
  if (!tensor.value("trainable", true)) line += "  frozen";
  return line;
}

void print_lines(const Document& found) {
  for (const auto& [key, value] : found.items()) {
    if (key == "tensors" || value.is_null()) continue;
    std::string text = text_of(value);
    if (key == "size_bytes") text += fmt::format(" ({})", format_size(value.get<std::size_t>()));
    fmt::print("{:<18} {}\n", key, text);
  }
  if (!found.contains("tensors")) return;
  fmt::print("tensors\n");
  for (const Document& tensor : found["tensors"]) fmt::print("{}\n", line_of_tensor(tensor));
}

void print_json(const Document& found) {
  const Document document = {{"schema", "terrace.inspect/1"},
                             {"version", terrace_version()},
                             {"host", Document::parse(host_facts_json())},
                             {"results", Document::array({found})}};
  fmt::print("{}\n", document.dump(2));
}

}  // namespace

int run_inspect(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kInspectCommand, kInspectFlags));
    return 0;
  }
  const auto [values, operands] = read_command_line(kInspectCommand, kInspectFlags, arguments);
  const DataFormat format = values[kInspectFormat]
                                ? parse_data_format(values[kInspectFormat]->text())
                                : DataFormat::kAuto;
  const Document found = Document::parse(inspect_path(operands.front(), format));
  const bool as_json = values[kInspectJson] && values[kInspectJson]->on_off();
  as_json ? print_json(found) : print_lines(found);
  return 0;
}

}  // namespace terrace
