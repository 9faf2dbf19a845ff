#pragma once

#include <string_view>

namespace terrace::report {

// The style sheet of the page: light, dark and printed.
std::string_view page_style();

// A script that shows the values of a curve under the pointer. The page works without it. It has
// neither "<" nor "&", so it can stand in XML as it is.
std::string_view page_script();

}  // namespace terrace::report
