#pragma once

#include <string_view>

#include "runtime/jinja/context.h"
#include "runtime/jinja/value.h"

namespace terrace::jinja {

using Filter = Value (*)(Context& context, const Value& input, const Arguments& arguments);

// Returns the filter of that name; null where none is built. They are those of Jinja2 3.1, with the
// tojson of transformers, which does not escape HTML.
Filter find_filter(std::string_view name);
// Returns whether Jinja2 has a filter of that name that is not built here.
bool is_missing_filter(std::string_view name);

// The filters of the two kinds, each in a file of its own.
Filter find_text_filter(std::string_view name);
Filter find_list_filter(std::string_view name);

}  // namespace terrace::jinja
