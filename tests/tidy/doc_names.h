#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/source_tree.h"
#include "tests/tidy/violation.h"

namespace terrace::tidy {

// The names that the sources of a tree know, for documents that mention them.
class KnownNames {
 public:
  // Takes the words and flags out of the sources, and the names of the files themselves.
  explicit KnownNames(const std::vector<SourceFile>& sources);

  // Returns whether an identifier occurs in the sources. A name that begins or ends with _ stands
  // for all that end or begin so.
  bool has_word(std::string_view word) const;

  // Returns whether a flag is known: as "--name" somewhere, or as a string "name", the form in
  // which the command line's tables declare their flags.
  bool has_flag(std::string_view flag) const;

 private:
  std::set<std::string, std::less<>> words_;
  std::set<std::string, std::less<>> flags_;  // without the --
};

// Returns the identifiers, flags and files that a document names between backticks and that do not
// exist. An identifier has a _ or capitals inside; a file has a folder of the tree before it or the
// ending of a source. `exists` is called with paths from the root of the tree. Code blocks are left
// out: tests run them.
Violations check_names_of_document(const SourceFile& document, const KnownNames& names,
                                   const std::function<bool(const std::string&)>& exists);

}  // namespace terrace::tidy
