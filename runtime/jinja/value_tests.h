#pragma once

#include <string_view>

#include "runtime/jinja/context.h"
#include "runtime/jinja/value.h"

namespace terrace::jinja {

// A test of a template: `value is name(arguments)`.
using ValueTest = bool (*)(Context& context, const Value& value, const Arguments& arguments);

// Returns the test of that name; null where Jinja2 has none.
ValueTest find_value_test(std::string_view name);

}  // namespace terrace::jinja
