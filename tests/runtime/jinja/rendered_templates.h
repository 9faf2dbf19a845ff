#pragma once

#include <string>
#include <string_view>

#include "runtime/jinja/context.h"

namespace terrace {

// Returns the text that the template gives with values in JSON. Throws SyntaxError and RenderError.
std::string rendered_template(std::string_view source, std::string_view values = "{}",
                              const jinja::Limits& limits = {});

// Returns "line N: WHAT" of a template that is not understood; "" of one that is.
std::string syntax_error_of(std::string_view source);

// Returns why the template refuses the values; "" where it does not.
std::string render_error_of(std::string_view source, std::string_view values = "{}",
                            const jinja::Limits& limits = {});

}  // namespace terrace
