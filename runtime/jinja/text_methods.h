#pragma once

#include <string>
#include <string_view>

#include "runtime/jinja/context.h"
#include "runtime/jinja/value.h"

// Methods of Python's str.
namespace terrace::jinja {

using TextMethod = Value (*)(Context& context, const std::string& text, const Arguments& arguments);

// Returns the method of that name; null if it is not built here.
TextMethod find_text_method(std::string_view name);
// Returns whether Python's str has a method of that name that is not built here.
bool is_missing_text_method(std::string_view name);

// Returns the text with `replacement` in place of the first `most` matches of `wanted`; of all of
// them if it is negative.
std::string replace(Context& context, std::string_view text, std::string_view wanted,
                    std::string_view replacement, std::int64_t most);

}  // namespace terrace::jinja
