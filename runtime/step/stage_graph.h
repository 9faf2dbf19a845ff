#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

struct OpOfStage {
  int stage = 0;
  OpId op = 0;
};

std::vector<const Program*> pointers_to(std::span<const Program> programs);

// Everything that waits in the programs of the stages of one pipeline, taken together. A node is an
// op in one of several bodies that follow each other; the two ends of a message are one node, and
// so is the gathering of sums of all stages. Lanes of reads and writes are taken to complete in
// order, which is more than they do.
class StageGraph {
 public:
  // By stage. Borrows all.
  StageGraph(std::span<const Program* const> programs, int bodies);

  // What is not met, in sentences: every message that a stage sends must be met, in order and of
  // the same size and part, by what another receives. Nothing if all is well; else the rest of this
  // class says nothing.
  const std::vector<std::string>& problems() const { return problems_; }

  std::size_t nodes() const { return merged_.size(); }
  // The node of an op, the same for both ends of a message.
  std::size_t node(const OpOfStage& at, int body) const { return merged_[own_node(at, body)]; }
  // What waits for it.
  const std::vector<std::size_t>& next(std::size_t node) const { return next_[node]; }
  // Nodes of ops, each behind all that it waits for; those that wait for themselves are left out.
  std::vector<std::size_t> order() const;
  // A circle of nodes that wait for each other, each for the one before it and the first for the
  // last; empty if there is none.
  std::vector<std::size_t> circle() const;

  const Op& op_of(const OpOfStage& at) const {
    return programs_[static_cast<std::size_t>(at.stage)]->ops[static_cast<std::size_t>(at.op)];
  }
  // "send_hidden 3 mb 0 of stage 1"
  std::string name(const OpOfStage& at) const;

  template <typename Visit>
  void for_each_op(Visit visit) const {
    for (int stage = 0; stage < static_cast<int>(programs_.size()); ++stage) {
      const auto& ops = programs_[static_cast<std::size_t>(stage)]->ops;
      for (OpId op = 0; op < static_cast<OpId>(ops.size()); ++op) visit(OpOfStage{stage, op});
    }
  }

 private:
  struct Channel;

  std::size_t own_node(const OpOfStage& at, int body) const {
    return static_cast<std::size_t>(body) * nodes_of_body_ +
           first_[static_cast<std::size_t>(at.stage)] + static_cast<std::size_t>(at.op);
  }
  void merge(const OpOfStage& a, const OpOfStage& b);
  void match_messages();
  void match(const Channel& channel);
  void match_sums();
  void add_edges();
  // How many nodes each node waits for.
  std::vector<std::size_t> waits() const;

  std::span<const Program* const> programs_;
  int bodies_;
  std::vector<std::size_t> first_;  // node of each stage's first op
  std::size_t nodes_of_body_ = 0;
  std::vector<std::size_t> merged_;  // the node that stands for a node
  std::vector<std::vector<std::size_t>> next_;
  std::vector<std::string> problems_;
};

}  // namespace terrace
