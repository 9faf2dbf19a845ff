#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/source_tree.h"
#include "tests/tidy/violation.h"

namespace terrace::tidy {

// Returns the relative links of one document that lead nowhere. `exists` is called with paths from
// the root of the tree. Anchors, links to other sites, code blocks and code spans are not checked.
Violations check_links(std::string_view path, std::string_view text,
                       const std::function<bool(const std::string&)>& exists);

}  // namespace terrace::tidy
