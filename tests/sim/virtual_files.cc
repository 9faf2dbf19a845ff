#include "tests/sim/virtual_files.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace terrace {

class VirtualFiles::File final : public OpenFile {
 public:
  File(VirtualFiles& owner, NodePointer node) : owner_(owner), node_(std::move(node)) {}

  std::int64_t append(std::span<const std::byte> bytes) override {
    if (const int error = owner_.call(); error != 0) return -error;
    std::size_t carried = bytes.size();
    if (owner_.draw_chance(owner_.short_rate_)) carried = owner_.random_() % (bytes.size() + 1);
    if (carried == 0 && !bytes.empty()) return -EINTR;
    node_->seen.append(reinterpret_cast<const char*>(bytes.data()), carried);
    return static_cast<std::int64_t>(carried);
  }

  std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
    if (owner_.power_is_off()) return -EIO;
    if (offset >= node_->seen.size()) return 0;
    const std::size_t carried = std::min<std::size_t>(out.size(), node_->seen.size() - offset);
    std::memcpy(out.data(), node_->seen.data() + offset, carried);
    return static_cast<std::int64_t>(carried);
  }

  std::int64_t size() override { return static_cast<std::int64_t>(node_->seen.size()); }

  int sync() override {
    if (const int error = owner_.call(); error != 0) return error;
    node_->durable = node_->seen;
    return 0;
  }

  int close() override { return owner_.call(); }

 private:
  VirtualFiles& owner_;
  NodePointer node_;
};

VirtualFiles::VirtualFiles(std::uint64_t seed) : random_(seed), root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}

int VirtualFiles::call() {
  if (power_is_off()) return EIO;
  const bool fails = calls_ == fail_at_;
  ++calls_;
  if (power_is_off()) return EIO;
  return fails ? fail_error_ : 0;
}

void VirtualFiles::fail_after(std::int64_t calls, int error_number) {
  fail_at_ = calls_ + calls;
  fail_error_ = error_number;
}

bool VirtualFiles::draw_chance(double chance) {
  return std::ldexp(static_cast<double>(random_() >> 11), -53) < chance;
}

// Returns the directory's path and the last name.
std::pair<std::string, std::string> VirtualFiles::split(const std::string& path) {
  TERRACE_CHECK(path.starts_with('/'));
  const std::size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

VirtualFiles::NodePointer VirtualFiles::find(const std::string& path) const {
  NodePointer node = root_;
  std::size_t at = 1;
  while (node != nullptr && at < path.size()) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const auto found = node->names.find(path.substr(at, end - at));
    node = found == node->names.end() ? nullptr : found->second;
    at = end + 1;
  }
  return node;
}

VirtualFiles::NodePointer VirtualFiles::directory_of(const std::string& path) const {
  NodePointer node = find(split(path).first);
  return node != nullptr && node->is_directory ? node : nullptr;
}

void VirtualFiles::apply(std::map<std::string, NodePointer>& names, const Change& change) {
  if (!change.removed.empty()) {
    const auto found = names.find(change.removed);
    // If a rename removes a name, only the renamed file loses it: another file may have that name
    // by now.
    const bool goes =
        change.node == nullptr || (found != names.end() && found->second == change.node);
    if (found != names.end() && goes) names.erase(found);
  }
  if (!change.added.empty()) names[change.added] = change.node;
}

void VirtualFiles::change(Node& directory, Change change) {
  apply(directory.names, change);
  directory.changes.push_back(std::move(change));
}

FileSystem::Opened VirtualFiles::create(const std::string& path) {
  if (const int error = call(); error != 0) return {nullptr, error};
  const NodePointer directory = directory_of(path);
  if (directory == nullptr) return {nullptr, ENOENT};
  NodePointer node = find(path);
  if (node != nullptr && node->is_directory) return {nullptr, EISDIR};
  if (node == nullptr) {
    node = std::make_shared<Node>();
    change(*directory, {.removed = "", .added = split(path).second, .node = node});
  }
  node->seen.clear();
  return {std::make_unique<File>(*this, node), 0};
}

FileSystem::Opened VirtualFiles::open(const std::string& path) {
  if (power_is_off()) return {nullptr, EIO};
  const NodePointer node = find(path);
  if (node == nullptr) return {nullptr, ENOENT};
  if (node->is_directory) return {nullptr, EISDIR};
  return {std::make_unique<File>(*this, node), 0};
}

int VirtualFiles::make_directory(const std::string& path) {
  if (const int error = call(); error != 0) return error;
  const NodePointer directory = directory_of(path);
  if (directory == nullptr) return ENOENT;
  if (find(path) != nullptr) return EEXIST;
  auto node = std::make_shared<Node>();
  node->is_directory = true;
  change(*directory, {.removed = "", .added = split(path).second, .node = node});
  return 0;
}

int VirtualFiles::rename(const std::string& from, const std::string& to) {
  if (const int error = call(); error != 0) return error;
  const NodePointer directory = directory_of(from);
  const NodePointer node = find(from);
  if (node == nullptr) return ENOENT;
  TERRACE_CHECK(directory == directory_of(to));
  const NodePointer there = find(to);
  if (there != nullptr && there->is_directory != node->is_directory) {
    return there->is_directory ? EISDIR : ENOTDIR;
  }
  if (there != nullptr && !there->names.empty()) return ENOTEMPTY;
  change(*directory, {.removed = split(from).second, .added = split(to).second, .node = node});
  return 0;
}

// Removes a file or a directory. The content of a directory goes first, name after name in any
// order, as with remove_all().
int VirtualFiles::remove(const std::string& path) {
  const NodePointer directory = directory_of(path);
  const NodePointer node = directory == nullptr ? nullptr : find(path);
  if (node == nullptr) return power_is_off() ? EIO : 0;
  std::vector<std::string> inside = list(path);
  std::ranges::shuffle(inside, random_);
  for (const std::string& name : inside) {
    if (const int error = remove(path + "/" + name); error != 0) return error;
  }
  if (const int error = call(); error != 0) return error;
  change(*directory, {.removed = split(path).second, .added = "", .node = nullptr});
  return 0;
}

int VirtualFiles::sync_directory(const std::string& path) {
  if (const int error = call(); error != 0) return error;
  const NodePointer node = find(path);
  if (node == nullptr || !node->is_directory) return ENOENT;
  node->durable_names = node->names;
  node->changes.clear();
  return 0;
}

bool VirtualFiles::exists(const std::string& path) {
  return !power_is_off() && find(path) != nullptr;
}

std::vector<std::string> VirtualFiles::list(const std::string& directory) {
  std::vector<std::string> names;
  const NodePointer node = find(directory);
  if (node == nullptr || power_is_off()) return names;
  for (const auto& [name, unused] : node->names) names.push_back(name);
  return names;
}

void VirtualFiles::lose_what_is_not_durable() { lose(*root_); }

void VirtualFiles::recover() {
  cut_at_ = std::numeric_limits<std::int64_t>::max();
  fail_at_ = -1;
  short_rate_ = 0;
}

void VirtualFiles::lose(Node& node) {
  if (!node.is_directory) return lose_content(node);
  lose_names(node);
  for (const auto& [name, child] : node.names) lose(*child);
}

// Keeps any subset of the changes to names since the last sync, only the first of them, or none.
void VirtualFiles::lose_names(Node& directory) {
  const std::uint64_t kind = random_() % 3;
  const std::size_t first = random_() % (directory.changes.size() + 1);
  std::map<std::string, NodePointer> left = directory.durable_names;
  for (std::size_t i = 0; i < directory.changes.size(); ++i) {
    const bool reached_the_drive = kind == 0 ? false : kind == 1 ? i < first : random_() % 2 == 0;
    if (reached_the_drive) apply(left, directory.changes[i]);
  }
  directory.names = left;
  directory.durable_names = left;
  directory.changes.clear();
}

// Loses content of a file that was not synced since its last change. The durable content is left,
// or a beginning of the seen content, maybe with zeros in place of the rest.
void VirtualFiles::lose_content(Node& file) {
  if (file.seen == file.durable) return;
  std::string left = file.durable;
  if (random_() % 2 == 0) {
    left = file.seen.substr(0, random_() % (file.seen.size() + 1));
    if (random_() % 2 == 0) left.resize(file.seen.size(), '\0');
    // Synced bytes are still there, unless they were overwritten: files here are only appended to.
    const bool is_longer = file.seen.starts_with(file.durable);
    if (is_longer && left.size() < file.durable.size()) left = file.durable;
    if (is_longer) left.replace(0, file.durable.size(), file.durable);
  }
  file.seen = left;
  file.durable = left;
}

}  // namespace terrace
