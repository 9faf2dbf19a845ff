#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/jinja/json_value.h"
#include "runtime/jinja/python_text.h"
#include "runtime/jinja/template.h"

namespace {

using terrace::jinja::Mapping;
using terrace::jinja::Value;

// Renders {"template": ..., "values": {...}}.
Mapping rendered(const std::string& line) {
  using terrace::jinja::length_of;
  using terrace::jinja::parse_json_value;
  using terrace::jinja::Template;
  Mapping out;
  try {
    const Value row = parse_json_value(line, "line");
    const Template source(row.mapping().find("template")->text());
    const Template::Rendered result = source.render(row.mapping().find("values")->mapping());
    const auto place = [&](std::size_t bytes) {
      const std::size_t length = length_of(std::string_view(result.text).substr(0, bytes));
      return Value(static_cast<std::int64_t>(length));
    };
    std::vector<Value> generated;
    for (const auto& [begin, end] : result.generated) {
      generated.push_back(Value::list({place(begin), place(end)}));
    }
    out.set("text", Value(result.text));
    out.set("generated", Value::list(std::move(generated)));
  } catch (const std::exception& problem) {
    out.set("problem", Value(std::string(problem.what())));
  }
  return out;
}

}  // namespace

// Renders each line of the input, {"template": ..., "values": {...}}, and writes a line with the
// text and what is marked as generated, in characters, or with the problem.
int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << terrace::jinja::to_json(Value(rendered(line)), {}) << std::endl;
  }
}
