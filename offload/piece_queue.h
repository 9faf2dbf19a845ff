#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"
#include "offload/io_engine.h"

namespace terrace {

// Pieces that wait for their turn. Pieces of one direction keep the order they came in. The
// directions take turns, so that neither waits for all pieces of the other. Bounded; allocates
// nothing after it is made.
class PieceQueue {
 public:
  explicit PieceQueue(std::size_t capacity) : reads_(capacity), writes_(capacity) {}

  bool empty() const { return reads_.count == 0 && writes_.count == 0; }

  // Adds a piece. At most `capacity` pieces of one direction may wait.
  void push(const Piece& piece) {
    (piece.direction == IoDirection::kRead ? reads_ : writes_).push(piece);
  }

  // Returns the piece whose turn it is. The queue must not be empty.
  const Piece& next() const {
    TERRACE_CHECK(!empty());
    return (reads_next() ? reads_ : writes_).next();
  }

  // Removes next() and returns it.
  Piece pop() {
    TERRACE_CHECK(!empty());
    const bool read = reads_next();
    read_next_ = !read;
    return (read ? reads_ : writes_).pop();
  }

 private:
  struct Line {
    explicit Line(std::size_t capacity) : places(capacity) {}

    void push(const Piece& piece) {
      TERRACE_CHECK_LT(count, places.size());
      places[(first + count) % places.size()] = piece;
      ++count;
    }
    const Piece& next() const { return places[first]; }
    Piece pop() {
      const Piece piece = places[first];
      first = (first + 1) % places.size();
      --count;
      return piece;
    }

    std::vector<Piece> places;  // a ring
    std::size_t first = 0;
    std::size_t count = 0;
  };

  bool reads_next() const { return writes_.count == 0 || (reads_.count != 0 && read_next_); }

  Line reads_;
  Line writes_;
  bool read_next_ = true;
};

}  // namespace terrace
