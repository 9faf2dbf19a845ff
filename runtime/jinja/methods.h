#pragma once

#include <optional>
#include <string>

#include "runtime/jinja/value.h"

namespace terrace::jinja {

// Returns the method `name` of a text, list or mapping, bound to it; nothing where Python's types
// have none of that name. Throws RenderError for a method that Python has and that is not built, or
// that would change the value, which Jinja2's sandbox refuses too.
std::optional<Value> find_method(const Value& value, const std::string& name);

}  // namespace terrace::jinja
