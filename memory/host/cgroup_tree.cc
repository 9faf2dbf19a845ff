#include "memory/host/cgroup_tree.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUp = "/..";

// A line of /proc/self/cgroup: "number:controllers:path". In version 2 the controllers are empty.
struct Membership {
  std::string controllers;
  std::string path;  // "/a/b": from the root of the cgroup namespace; "/../a": outside of it
};

// A line of /proc/self/mountinfo.
struct Mount {
  std::string root;  // the cgroup that is mounted, written as in Membership::path
  std::string point;
  std::string type;
  std::string options;  // the file system's
};

bool is_in_list(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

std::vector<Membership> read_memberships(const std::string& root) {
  std::vector<Membership> result;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    result.push_back({line.substr(first + 1, second - first - 1), path});
  }
  return result;
}

// The kernel writes a space in a path as \040.
std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_escape = text[at] == '\\' && at + 3 < text.size();
    if (!is_escape) {
      result += text[at];
      continue;
    }
    result += static_cast<char>(std::strtol(text.substr(at + 1, 3).c_str(), nullptr, 8));
    at += 3;
  }
  return result;
}

// Reads lines such as "36 35 98:0 /root /point options [tags] - type source options".
std::vector<Mount> read_mounts(const std::string& root) {
  std::vector<Mount> result;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash));
    std::istringstream back(line.substr(dash + 3));
    std::string skipped;
    Mount mount;
    front >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    back >> mount.type >> skipped >> mount.options;
    if (!mount.type.starts_with("cgroup")) continue;
    if (mount.root == "/") mount.root.clear();
    mount.point = root + unescaped(mount.point);
    result.push_back(mount);
  }
  return result;
}

// Returns the places where the tree is usually mounted.
std::vector<Mount> usual_mounts(const std::string& root, const Membership& in,
                                std::string_view controller) {
  const std::string base = root + "/sys/fs/cgroup";
  if (in.controllers.empty()) return {{"", base, "", ""}, {"", base + "/unified", "", ""}};
  std::vector<Mount> mounts = {{"", base + "/" + std::string(controller), "", ""}};
  if (in.controllers != controller) mounts.push_back({"", base + "/" + in.controllers, "", ""});
  return mounts;
}

// Removes each "/.." from the front of a path, and returns how many there were.
int take_ups(std::string& path) {
  int ups = 0;
  while (path == kUp || path.starts_with("/../")) {
    path.erase(0, kUp.size());
    ++ups;
  }
  return ups;
}

bool has_process(const fs::path& directory, pid_t process) {
  std::ifstream file(directory / "cgroup.procs");
  for (pid_t one = 0; file >> one;) {
    if (one == process) return true;
  }
  return false;
}

// Finds the directory that contains this process. It is `depth` levels below the mount, and its
// path ends in `tail`. Returns its path relative to the mount, or nothing if it is not found or if
// the tree is very large.
std::optional<std::string> find_process(const std::string& mount, int depth,
                                        const std::string& tail) {
  constexpr std::size_t kDirectoriesMax = 20'000;
  std::vector<fs::path> level = {mount};
  std::size_t seen = 0;
  for (; depth > 0; --depth) {
    std::vector<fs::path> next;
    for (const fs::path& directory : level) {
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(directory, ignored)) {
        if (!entry.is_directory(ignored)) continue;
        if (++seen > kDirectoriesMax) return std::nullopt;
        next.push_back(entry.path());
      }
    }
    level = std::move(next);
  }
  const pid_t process = ::getpid();
  for (const fs::path& directory : level) {
    const std::string path = directory.string().substr(mount.size());
    if (path.ends_with(tail) && has_process(directory, process)) return path;
  }
  return std::nullopt;
}

// Returns the path of our cgroup relative to the mount. It is empty if our cgroup is the mount's
// root, or if it is not found. In a container, the path that the kernel reports may be a path on
// the host that does not exist in the container; the container's own cgroup is then the mount's
// root.
std::string path_in_mount(const Mount& mount, const Membership& in) {
  if (in.path == mount.root) return "";
  if (in.path.starts_with(mount.root + "/") &&
      !in.path.substr(mount.root.size()).starts_with(kUp)) {
    return in.path.substr(mount.root.size());
  }
  std::string above = mount.root;
  std::string tail = in.path;
  const int ups = take_ups(above) - take_ups(tail);
  if (ups <= 0 || !above.empty()) return "";
  const auto names = static_cast<int>(std::ranges::count(tail, '/'));
  return find_process(mount.point, ups + names, tail).value_or("");
}

CgroupPath path_to_root(const std::string& mount, std::string path, bool is_v2) {
  CgroupPath result;
  result.is_v2 = is_v2;
  while (!path.empty()) {
    result.directories.push_back(mount + path);
    path.erase(path.rfind('/'));
  }
  result.directories.push_back(mount);
  return result;
}

}  // namespace

std::vector<CgroupPath> cgroup_paths(const std::string& root, std::string_view controller) {
  const std::vector<Mount> all = read_mounts(root);
  std::vector<CgroupPath> result;
  for (const Membership& in : read_memberships(root)) {
    const bool is_v2 = in.controllers.empty();
    if (!is_v2 && !is_in_list(in.controllers, controller)) continue;
    std::vector<Mount> mounts;
    std::ranges::copy_if(all, std::back_inserter(mounts), [&](const Mount& mount) {
      return is_v2 ? mount.type == "cgroup2"
                   : mount.type == "cgroup" && is_in_list(mount.options, controller);
    });
    if (mounts.empty()) mounts = usual_mounts(root, in, controller);
    for (const Mount& mount : mounts) {
      result.push_back(path_to_root(mount.point, path_in_mount(mount, in), is_v2));
    }
  }
  return result;
}

}  // namespace terrace
