#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// The cgroups of one controller, in one mount, whose limits apply to this process.
struct CgroupPath {
  std::vector<std::string> directories;  // from the process's own up to the mount's root
  bool is_v2 = false;
};

// Returns these cgroups, one entry for each mount, according to /proc/self/cgroup and
// /proc/self/mountinfo below `root`. A process in its own cgroup namespace is told that it is in
// "/", even if the mounted tree is the host's; its cgroup is then found by searching the tree for
// its process number. If the mounts are not listed, looks in the usual places.
std::vector<CgroupPath> cgroup_paths(const std::string& root, std::string_view controller);

}  // namespace terrace
