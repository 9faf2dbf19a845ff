#pragma once

#include <string>

#include "base/log.h"

namespace terrace {

// A directory "terrace-<pid>-<random>" of this process inside one that the user named, held by a
// lock file for as long as it lives. Making one removes those whose owner is dead, naming them in
// the log.
class JobDirectory {
 public:
  // Throws as throw_not_made() does where no directory can be made in `parent`. Where the file
  // system has no locks it says so in the log, and removes nothing.
  JobDirectory(const std::string& parent, Log& log);
  // Removes the directory with the files that belong in it; never throws. What cannot be removed is
  // removed by the next start.
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string slot_file() const;
  // What the destructor does, earlier.
  void remove() noexcept;

 private:
  std::string path_;
  int lock_ = -1;
};

}  // namespace terrace
