#pragma once

#include <string>
#include <vector>

// The files that terrace tokenize reads.
namespace terrace {

// Returns the texts that `paths` name, as list_data_files() has them, for a token file that is
// written to `output`. In directories it leaves out that file and the files beside it that an
// earlier or an interrupted run has left. Throws ConfigError where writing `output` would replace a
// text, where no text is left, and as list_data_files() does.
std::vector<std::string> list_text_files(const std::vector<std::string>& paths,
                                         const std::string& output);

// Returns whether the files have documents of JSON, as holds_json_documents() says. Throws
// ConfigError where some have and others have not.
bool are_json_lines(const std::vector<std::string>& files);

// Throws ConfigError where writing a token file to `output` would replace the input, under this
// name or under another name of the same file.
void check_not_replaced(const std::string& input, const std::string& output);

}  // namespace terrace
