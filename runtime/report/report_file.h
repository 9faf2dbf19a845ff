#pragma once

#include <string>
#include <string_view>

namespace terrace::report {

// Throws ConfigError if a report must not be written to the path: a directory, or a file that is
// there and that `terrace report` has not written.
void check_report_file(const std::string& path);

// Writes the file: it appears complete, in place of the report that was there, or not at all.
// Throws ConfigError if its directory does not exist, and IoError.
void write_report_file(const std::string& path, std::string_view content);

}  // namespace terrace::report
