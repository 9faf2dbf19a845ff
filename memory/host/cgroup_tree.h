#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// The cgroups whose limits hold for this process, of one controller and one mount.
struct CgroupPath {
  std::vector<std::string> directories;  // from the process's own up to the root of the mount
  bool is_v2 = false;
};

// Finds them by /proc/self/cgroup and /proc/self/mountinfo below `root`. A process in a cgroup
// namespace of its own is told that it is in "/", also where what is mounted is the host's tree:
// then its cgroup is looked for in the tree, by its process number. Where the mounts are not told,
// the usual places are taken.
std::vector<CgroupPath> cgroup_paths(const std::string& root, std::string_view controller);

}  // namespace terrace
