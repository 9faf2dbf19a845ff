#pragma once

#include <cstdint>
#include <vector>

// Says which forward feeds which. The forwards of each micro-batch form a chain in the order in
// which they are computed. A forward reads the hidden states that the one before it left, unless
// its unit names the units whose outputs it reads. A backward belongs to the last forward of its
// unit and micro-batch that had no backward so far. A unit may stand in a chain several times.
namespace terrace {

class ForwardChains {
 public:
  struct Forward {
    std::int32_t unit = 0;
    std::int32_t micro_batch = 0;
    std::vector<std::int32_t> inputs = {};  // the forwards whose outputs it reads
    std::int32_t use = 0;  // how many forwards of its unit stand before it in the chain
    bool has_backward = false;
  };

  // Adds a forward and returns its number. Forwards are numbered in the order of these calls. It
  // reads the last outputs of the units named in `inputs`, as far as they are in the chain; where
  // none is named, the output of the forward before it, if there is one.
  std::int32_t add(std::int32_t unit, std::int32_t micro_batch,
                   const std::vector<std::int32_t>& inputs);
  // Returns the forward that the next backward of the unit belongs to, and notes that it has one
  // now; -1 if there is none.
  std::int32_t end(std::int32_t unit, std::int32_t micro_batch);
  // Returns the unit's last forward in the chain; -1 if there is none.
  std::int32_t last_of(std::int32_t unit, std::int32_t micro_batch) const;

  const Forward& at(std::int32_t forward) const { return forwards_.at(index(forward)); }
  // Returns all forwards, by number.
  const std::vector<Forward>& all() const { return forwards_; }

 private:
  static std::size_t index(std::int32_t forward) { return static_cast<std::size_t>(forward); }

  std::vector<Forward> forwards_;
  std::vector<std::vector<std::int32_t>> chains_;  // by micro-batch: numbers of forwards
};

}  // namespace terrace
