#include "tests/runtime/jinja/rendered_templates.h"

#include <fmt/format.h>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/json_value.h"
#include "runtime/jinja/template.h"

namespace terrace {

std::string rendered_template(std::string_view source, std::string_view values,
                              const jinja::Limits& limits) {
  const jinja::Value row = jinja::parse_json_value(values, "values");
  return jinja::Template(source, limits).render(row.mapping()).text;
}

std::string syntax_error_of(std::string_view source) {
  try {
    const jinja::Template made(source);
  } catch (const jinja::SyntaxError& error) {
    return fmt::format("line {}: {}", error.line(), error.what());
  }
  return "";
}

std::string render_error_of(std::string_view source, std::string_view values,
                            const jinja::Limits& limits) {
  try {
    rendered_template(source, values, limits);
  } catch (const jinja::RenderError& error) {
    return error.what();
  }
  return "";
}

}  // namespace terrace
