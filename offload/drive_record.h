#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "offload/drive_shape.h"

namespace terrace {

// The measured facts of a drive, kept in a file so that the next start need not measure again. The
// object that opens the file holds it alone until it is destroyed, so that two starts do not
// measure a drive at the same time. It is never an error if the facts cannot be kept.
class DriveRecord {
 public:
  // kRead makes nothing, keeps nothing and does not wait for others.
  enum class Use { kReadAndKeep, kRead };

  // `directory` is made where it does not exist; if it is empty, nothing is kept. `key` is one line
  // that says which drive it is and how it is used. Facts that were kept for another key are not
  // used.
  DriveRecord(const std::string& directory, std::string key, Use use = Use::kReadAndKeep);
  ~DriveRecord();
  DriveRecord(const DriveRecord&) = delete;
  DriveRecord& operator=(const DriveRecord&) = delete;

  // Returns nothing where nothing is kept, or the kept facts are damaged, or of another version or
  // drive.
  std::optional<DriveFacts> facts() const;
  // Returns whether the facts were kept.
  bool keep(const DriveFacts& facts);

  // The file. Remove it to have the drive measured again.
  const std::string& path() const { return path_; }

 private:
  std::string text_of(const DriveFacts& facts) const;

  const std::string key_;
  std::string path_;
  int descriptor_ = -1;
};

// Returns $XDG_CACHE_HOME/terrace, or ~/.cache/terrace; empty where the environment names neither.
std::string user_cache_directory();

// Returns the facts that an earlier store on the directory's drive has measured, with any engine.
// Returns nothing where no store has, or the facts were not kept in the user's cache directory.
// Writes nothing.
std::optional<DriveFacts> remembered_drive(const std::string& directory);

// Returns the block device that a directory lies on, whatever the partition: two directories with
// the same name share a drive. A file system without a block device counts as a device of its own.
std::string device_of(const std::string& directory);
// Returns the key of the record of a directory's drive, as used by an engine.
std::string drive_record_key(const std::string& directory, std::string_view engine);
// Returns one line: file system, device and kernel.
std::string drive_key(const std::string& directory);

}  // namespace terrace
