#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/file_system.h"

namespace terrace {

// A file system in memory that separates the content that is seen from the content that would be
// left if the power went off: of a file, the bytes at its last sync; of a directory, the names at
// its last sync. Paths start at "/", which is there and is durable.
class VirtualFiles final : public FileSystem {
 public:
  explicit VirtualFiles(std::uint64_t seed);

  Opened create(const std::string& path) override;
  Opened open(const std::string& path) override;
  int make_directory(const std::string& path) override;
  int rename(const std::string& from, const std::string& to) override;
  int remove(const std::string& path) override;
  int sync_directory(const std::string& path) override;
  bool exists(const std::string& path) override;
  std::vector<std::string> list(const std::string& directory) override;
  // The space has no limit.
  std::optional<std::uint64_t> free_bytes(const std::string&) override { return std::nullopt; }

  // --- faults; calls that change nothing are not counted and do not fail
  // --------------------------

  std::int64_t calls() const { return calls_; }
  // Makes every call fail after `calls` more calls, because its program has ended.
  void cut_power_after(std::int64_t calls) { cut_at_ = calls_ + calls; }
  bool power_is_off() const { return calls_ >= cut_at_; }
  // Makes one call fail, after `calls` more calls.
  void fail_after(std::int64_t calls, int error_number);
  // Makes appends short or interrupted at this rate.
  void set_short_rate(double rate) { short_rate_ = rate; }

  // Leaves only the durable content and a part of the rest: later names without earlier ones, files
  // without their content or with some of it, all as the seed says. Open files are lost.
  void lose_what_is_not_durable();
  // Turns the power on again, and ends all faults.
  void recover();

 private:
  struct Node;
  using NodePointer = std::shared_ptr<Node>;
  // A change to the names of a directory since its last sync.
  struct Change {
    std::string removed;  // empty: nothing
    std::string added;    // empty: nothing
    NodePointer node;
  };
  struct Node {
    bool is_directory = false;
    std::string seen;
    std::string durable;
    std::map<std::string, NodePointer> names;
    std::map<std::string, NodePointer> durable_names;
    std::vector<Change> changes;
  };
  class File;

  static std::pair<std::string, std::string> split(const std::string& path);
  NodePointer find(const std::string& path) const;
  NodePointer directory_of(const std::string& path) const;
  static void apply(std::map<std::string, NodePointer>& names, const Change& change);
  static void change(Node& directory, Change change);
  void lose(Node& node);
  void lose_names(Node& directory);
  void lose_content(Node& file);
  // Counts a call, and returns its errno if it fails.
  int call();
  bool draw_chance(double chance);

  std::mt19937_64 random_;
  NodePointer root_;
  std::int64_t calls_ = 0;
  std::int64_t cut_at_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t fail_at_ = -1;
  int fail_error_ = 0;
  double short_rate_ = 0;
};

}  // namespace terrace
