#pragma once

#include <string>

#include "base/log.h"

namespace terrace {

// A directory "terrace-<pid>-<random>" of this process inside a directory that the user named. A
// lock file marks it as in use while this object lives. Making one removes the directories whose
// owner is dead, and names them in the log.
class JobDirectory {
 public:
  // Throws as throw_not_made() does where no directory can be made in `parent`. Where the file
  // system has no locks, it says so in the log and removes nothing.
  JobDirectory(const std::string& parent, Log& log);
  // Removes the directory with the files that belong in it; never throws. If something cannot be
  // removed, the next start removes it.
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string slot_file() const;
  // Does now what the destructor would do.
  void remove() noexcept;

 private:
  std::string path_;
  int lock_ = -1;
};

}  // namespace terrace
