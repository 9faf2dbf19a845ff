#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "offload/drive_shape.h"

namespace terrace {

// What a drive was measured to do, kept in a file so that the next start need not measure again.
// Whoever opens it has it alone until the object is destroyed, so that two starts do not measure a
// drive at the same time. That it cannot be kept is never an error.
class DriveRecord {
 public:
  // Whoever only reads makes nothing, keeps nothing and waits for nobody.
  enum class Use { kReadAndKeep, kRead };

  // `directory` is made where it is not there; empty: nothing is kept. `key` is one line that says
  // what drive it is and how it is used: what was kept for another is not taken.
  DriveRecord(const std::string& directory, std::string key, Use use = Use::kReadAndKeep);
  ~DriveRecord();
  DriveRecord(const DriveRecord&) = delete;
  DriveRecord& operator=(const DriveRecord&) = delete;

  // Nothing where nothing is kept, or what is there is damaged, of another version or drive.
  std::optional<DriveFacts> facts() const;
  // Whether it was kept.
  bool keep(const DriveFacts& facts);

  // The file; to remove it is to have the drive measured again.
  const std::string& path() const { return path_; }

 private:
  std::string text_of(const DriveFacts& facts) const;

  const std::string key_;
  std::string path_;
  int descriptor_ = -1;
};

// $XDG_CACHE_HOME/terrace, or ~/.cache/terrace; empty where the environment names neither.
std::string user_cache_directory();

// Returns what an earlier store on the directory's drive has measured, with whichever engine; none
// where none has, or it was not kept in the user's cache directory. Writes nothing.
std::optional<DriveFacts> remembered_drive(const std::string& directory);

// The block device that a directory lies on, whatever the partition: two directories of the same
// name share a drive. A file system without one is a device of its own.
std::string device_of(const std::string& directory);
// The key of the record of a directory's drive as an engine uses it.
std::string drive_record_key(const std::string& directory, std::string_view engine);
// One line: file system, device and kernel.
std::string drive_key(const std::string& directory);

}  // namespace terrace
