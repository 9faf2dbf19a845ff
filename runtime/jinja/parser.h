#pragma once

#include <string_view>

#include "runtime/jinja/statements.h"

namespace terrace::jinja {

struct ParsedTemplate {
  Block body;
  bool has_generation = false;  // some {% generation %} block is there
};

// Parses a template of valid UTF-8. Throws SyntaxError for what is not a template, for a tag,
// filter or test that is not built, and for a template that is longer or deeper than chat templates
// are.
ParsedTemplate parse_template(std::string_view source);

}  // namespace terrace::jinja
