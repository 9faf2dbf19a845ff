#include "offload/piece_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

Piece piece(IoDirection direction, std::uint64_t offset) {
  return {.direction = direction, .offset = offset, .memory = {}, .completion = nullptr};
}

std::string popped(PieceQueue& queue) {
  std::string order;
  while (!queue.empty()) {
    const std::uint64_t announced = queue.next().offset;
    const Piece next = queue.pop();
    EXPECT_EQ(next.offset, announced);
    order += (next.direction == IoDirection::kRead ? "r" : "w") + std::to_string(next.offset) + " ";
  }
  return order;
}

TEST(PieceQueue, DirectionsTakeTurnsEachInItsOrder) {
  PieceQueue queue(8);
  for (std::uint64_t i = 0; i < 4; ++i) queue.push(piece(IoDirection::kWrite, i));
  for (std::uint64_t i = 0; i < 2; ++i) queue.push(piece(IoDirection::kRead, i));
  EXPECT_EQ(popped(queue), "r0 w0 r1 w1 w2 w3 ");
}

TEST(PieceQueue, GoesRoundItsPlaces) {
  PieceQueue queue(3);
  for (std::uint64_t round = 0; round < 5; ++round) {
    queue.push(piece(IoDirection::kRead, 2 * round));
    queue.push(piece(IoDirection::kRead, 2 * round + 1));
    EXPECT_EQ(popped(queue),
              "r" + std::to_string(2 * round) + " r" + std::to_string(2 * round + 1) + " ");
  }
}

TEST(PieceQueueDeathTest, MoreThanItsPlacesIsAMistake) {
  PieceQueue queue(1);
  queue.push(piece(IoDirection::kRead, 0));
  queue.push(piece(IoDirection::kWrite, 0));
  EXPECT_DEATH(queue.push(piece(IoDirection::kRead, 1)), "count");
}

}  // namespace
}  // namespace terrace
