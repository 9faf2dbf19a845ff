#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Returns the commands of a document in Markdown that a reader is to type, in their order: the
// lines of its indented blocks. A line that ends with a backslash goes on in the next one; both
// stay as they are written, without the indent of the block.
std::vector<std::string> commands_of(std::string_view markdown);

}  // namespace terrace
