#pragma once

#include <string_view>

namespace terrace {

// Writes the text to standard output at once: a large model takes seconds for a token, and the
// reader should not wait for the last one. Throws IoError.
void print_now(std::string_view text);

// Returns whether the descriptor is a terminal that can erase a line: TERM is set, and not "dumb".
bool erases_lines(int descriptor);

// Returns whether escapes for colours may be written to the descriptor: it erases lines, and
// NO_COLOR is not set to a text.
bool takes_colours(int descriptor);

}  // namespace terrace
