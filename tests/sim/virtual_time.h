#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "base/hash.h"

// Virtual time: one thread does all the work of lanes and drives, in an order that comes from a
// seed.
namespace terrace {

// The error that nothing can happen any more, although somebody still waits.
class Hang : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown when the power goes off. It is not an Error, because no code handles it.
class PowerCut {};

// A queue of the machine: a lane's thread, a stream, a drive.
class Actor {
 public:
  virtual ~Actor() = default;
  // Returns when it acts next; none while it waits for others.
  virtual std::optional<std::int64_t> due_ns() = 0;
  virtual void act() = 0;
};

class VirtualTime final : public Clock {
 public:
  explicit VirtualTime(std::uint64_t seed) : random_(seed) {}

  std::int64_t now_ns() const override { return now_ns_; }

  // Borrows an actor until it is removed.
  void add(Actor& actor) { actors_.push_back(&actor); }
  void remove(Actor& actor) { std::erase(actors_, &actor); }

  // Lets the actor that is due first act, again and again until `done`. Throws Hang, and PowerCut
  // at the moment set.
  void run_until(FunctionRef<bool()> done);
  // Cuts the power after `acts` more acts.
  void cut_power_after(std::int64_t acts) { cut_at_ = acts_ + acts; }
  void keep_power() { cut_at_ = std::numeric_limits<std::int64_t>::max(); }

  std::uint64_t draw() { return random_(); }
  bool draw_chance(double chance);
  // Returns a latency around `mean_ns`, now and then much more.
  std::int64_t draw_latency(std::int64_t mean_ns);

  // Returns a hash of all events so far, which is equal for equal seeds.
  std::uint64_t history() const { return history_.value(); }

 private:
  std::mt19937_64 random_;
  std::int64_t now_ns_ = 0;
  std::int64_t acts_ = 0;
  std::int64_t cut_at_ = std::numeric_limits<std::int64_t>::max();
  std::vector<Actor*> actors_;
  StreamingHash history_;
};

}  // namespace terrace
