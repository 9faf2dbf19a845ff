#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <utility>

#include "runtime/step/program.h"

namespace terrace {

// The bytes of a tier that an access touches. An extent on NVMe counts as one byte, whichever part
// of it is touched, because it is read and written as a whole.
struct Place {
  Tier tier = Tier::kHost;
  std::size_t begin = 0;
  std::size_t end = 0;
};

inline Place place_of(const Program& program, const Access& access) {
  const Buffer& buffer = program.buffers.at(access.buffer);
  if (buffer.tier == Tier::kNvme) return {buffer.tier, buffer.offset, buffer.offset + 1};
  const std::size_t begin = buffer.offset + access.offset;
  return {buffer.tier, begin, begin + access.size_bytes};
}

// Remembers a value for every byte of every tier. Bytes that were assigned together are one piece,
// which is cut where only a part of it is touched.
template <typename Value>
class PlaceMap {
 public:
  // Calls visit(value) for all pieces of the place, in order. Bytes that were never assigned get a
  // default value, which then stays.
  template <typename Visit>
  void visit(const Place& place, Visit visit) {
    Pieces& pieces = pieces_of(place);
    if (Piece* known = find(pieces, place)) return visit(known->value);
    cut(pieces, place.begin);
    cut(pieces, place.end);
    for (std::size_t at = place.begin; at < place.end;) {
      auto it = pieces.find(at);
      if (it == pieces.end()) {
        const auto next = pieces.lower_bound(at);
        const std::size_t end = next == pieces.end() ? place.end : std::min(place.end, next->first);
        it = pieces.emplace(at, Piece{end, Value()}).first;
      }
      visit(it->second.value);
      at = it->second.end;
    }
  }

  // Makes the whole place one piece with this value.
  void assign(const Place& place, Value value) {
    if (place.begin == place.end) return;
    Pieces& pieces = pieces_of(place);
    if (Piece* known = find(pieces, place)) {
      known->value = std::move(value);
      return;
    }
    cut(pieces, place.begin);
    cut(pieces, place.end);
    pieces.erase(pieces.lower_bound(place.begin), pieces.lower_bound(place.end));
    pieces.emplace(place.begin, Piece{place.end, std::move(value)});
  }

 private:
  struct Piece {
    std::size_t end = 0;
    Value value;
  };
  using Pieces = std::map<std::size_t, Piece>;

  Pieces& pieces_of(const Place& place) { return tiers_.at(static_cast<std::size_t>(place.tier)); }

  // Returns the piece that covers exactly this place, as there is in most cases; else null.
  static Piece* find(Pieces& pieces, const Place& place) {
    const auto it = pieces.find(place.begin);
    return it != pieces.end() && it->second.end == place.end ? &it->second : nullptr;
  }

  static void cut(Pieces& pieces, std::size_t at) {
    auto it = pieces.lower_bound(at);
    if (it == pieces.begin() || (it != pieces.end() && it->first == at)) return;
    --it;
    if (it->second.end <= at) return;
    Piece right = it->second;
    it->second.end = at;
    pieces.emplace(at, std::move(right));
  }

  std::array<Pieces, kTierCount> tiers_;
};

}  // namespace terrace
