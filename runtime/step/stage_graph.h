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

// The waits in the programs of all stages of one pipeline, taken together. A node is an op in one
// of several bodies that follow each other. The two ends of a message are one node, and so is the
// gathering of sums of all stages. The lanes of reads and writes are assumed to complete in order,
// which is more than they do.
class StageGraph {
 public:
  // `programs`: by stage. Borrows all.
  StageGraph(std::span<const Program* const> programs, int bodies);

  // Returns the problems, as sentences; nothing if all is well. Every message that a stage sends
  // must be met, in order and with the same size and part, by one that another stage receives, and
  // either all stages or none gather sums. If there are problems, the rest of this class says
  // nothing.
  const std::vector<std::string>& problems() const { return problems_; }

  std::size_t nodes() const { return merged_.size(); }
  // Returns the node of an op. Both ends of a message have the same node.
  std::size_t node(const OpOfStage& at, int body) const { return merged_[own_node(at, body)]; }
  // Returns the nodes that wait for a node.
  const std::vector<std::size_t>& next(std::size_t node) const { return next_[node]; }
  // Returns the nodes of ops, each behind all nodes that it waits for. Nodes that wait for
  // themselves are left out, and so are nodes that wait for these.
  std::vector<std::size_t> order() const;
  // Returns a circle of nodes that wait for each other: each waits for the one before it, and the
  // first waits for the last. Empty if there is none.
  std::vector<std::size_t> circle() const;

  const Op& op_of(const OpOfStage& at) const {
    return programs_[static_cast<std::size_t>(at.stage)]->ops[static_cast<std::size_t>(at.op)];
  }
  // Returns a name for people: "send_hidden 3 mb 0 of stage 1".
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
  // Returns how many nodes each node waits for.
  std::vector<std::size_t> waits() const;

  std::span<const Program* const> programs_;
  int bodies_;
  std::vector<std::size_t> first_;  // node of each stage's first op, in the first body
  std::size_t nodes_of_body_ = 0;
  std::vector<std::size_t> merged_;  // by node: the node that stands for it
  std::vector<std::vector<std::size_t>> next_;
  std::vector<std::string> problems_;
};

}  // namespace terrace
