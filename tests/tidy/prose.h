#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::tidy {

// A sentence that a reader of the tree meets: in a comment, a document, or a string of a program.
// Text between backticks is replaced by `x`, a link by its text.
struct Sentence {
  int line = 1;  // where its paragraph, run of comment lines or string begins, from 1
  std::string text;
};

// Returns the sentences of a C++ source, CMake file, script or document; the path's ending says
// which. Code blocks and headings of documents are left out, and strings shorter than 18 characters
// or without a space.
std::vector<Sentence> sentences_of(std::string_view path, std::string_view text);

}  // namespace terrace::tidy
