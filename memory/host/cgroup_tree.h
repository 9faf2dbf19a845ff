#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// The cgroups of one controller and one mount whose limits hold for this process.
struct CgroupPath {
  std::vector<std::string> directories;  // from the process's own up to the root of the mount
  bool is_v2 = false;
};

// Finds them from /proc/self/cgroup and /proc/self/mountinfo below `root`. A process in a cgroup
// namespace of its own is told that it is in "/", even where the mounted tree is the host's; then
// its cgroup is looked for in the tree, by its process number. Where the mounts are not listed, the
// usual places are taken.
std::vector<CgroupPath> cgroup_paths(const std::string& root, std::string_view controller);

}  // namespace terrace
