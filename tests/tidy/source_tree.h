#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/violation.h"

namespace terrace::tidy {

struct SourceFile {
  std::string path;  // from the root, with /
  std::string text;
};

// Returns every C++ source, CMake file and script of the tree, sorted by path. Throws if the tree
// is not there or a file cannot be read.
std::vector<SourceFile> read_source_tree();

// Returns every file of the tree with that ending (".md", ".py"), sorted by path. Built and hidden
// files are left out. Throws if a file cannot be read.
std::vector<SourceFile> read_files(std::string_view ending);

// Returns the folders of the tree that hold sources, as paths from the root, sorted.
std::vector<std::string> source_folders(const std::vector<SourceFile>& files);

bool is_cpp(const std::string& path);
bool is_cpp_header(const std::string& path);

// Returns one line per violation, for a failure message.
std::string describe(const Violations& violations);

}  // namespace terrace::tidy
