#include "parallel/sockets/rank_address.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <utility>

#include "base/hash.h"

namespace terrace {
namespace {

std::uint64_t hash_of(const std::string& text) {
  return hash_bytes(std::as_bytes(std::span(text)));
}

TcpAddress loopback_address() {
  TcpAddress address;
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
  ipv4.sin_family = AF_INET;
  ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.size = sizeof(sockaddr_in);
  return address;
}

}  // namespace

WorldId random_world_id() {
  std::random_device random;
  const auto number = [&] { return std::uint64_t{random()} << 32 | random(); };
  return {number(), number()};
}

HostKey own_host_key() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  const std::string boot{std::istreambuf_iterator<char>(file), {}};
  struct stat network = {};
  if (::stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) name[0] = '\0';
  return {hash_of(boot), network.st_ino, hash_of(name.data())};
}

std::string local_name_of(const WorldId& world, int rank) {
  return fmt::format("terrace-{:016x}{:016x}-{}", world[0], world[1], rank);
}

std::string text_of(const GateAddress& address) {
  if (!address.local_name.empty()) return "this host";
  return text_of(address.tcp);
}

RankAddresses::RankAddresses(const Setting& setting, std::vector<RankPlace> places)
    : setting_(setting), places_(std::move(places)) {
  std::map<HostKey, int> numbers;
  for (int rank = 0; rank < size(); ++rank) {
    const HostKey& host = places_[static_cast<std::size_t>(rank)].host;
    const int number = numbers.try_emplace(host, static_cast<int>(numbers.size())).first->second;
    hosts_.push_back(setting.ranks_per_host == 0 ? number : rank / setting.ranks_per_host);
  }
}

int RankAddresses::hosts() const { return *std::ranges::max_element(hosts_) + 1; }

GateAddress RankAddresses::address_of(int rank) const {
  if (is_local(rank)) return {.local_name = local_name_of(setting_.world, rank), .tcp = {}};
  const RankPlace& place = places_[static_cast<std::size_t>(rank)];
  TcpAddress address = place.address;
  if (place.host == places_[static_cast<std::size_t>(setting_.rank)].host) {
    address = loopback_address();
  } else if (address.size == 0) {
    address = setting_.first;
  }
  return {.local_name = {}, .tcp = at_port(address, place.port)};
}

}  // namespace terrace
