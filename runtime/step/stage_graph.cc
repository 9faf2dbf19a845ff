#include "runtime/step/stage_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"

namespace terrace {

// The messages of one direction between two stages.
struct StageGraph::Channel {
  int from = 0;
  int to = 0;
  std::vector<OpOfStage> sends;
  std::vector<OpOfStage> receives;
};

std::vector<const Program*> pointers_to(std::span<const Program> programs) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) pointers.push_back(&program);
  return pointers;
}

StageGraph::StageGraph(std::span<const Program* const> programs, int bodies)
    : programs_(programs), bodies_(bodies) {
  for (const Program* program : programs) {
    TERRACE_CHECK_EQ(program->repetition.times, 1);
    first_.push_back(nodes_of_body_);
    nodes_of_body_ += program->ops.size();
  }
  merged_.resize(static_cast<std::size_t>(bodies) * nodes_of_body_);
  std::iota(merged_.begin(), merged_.end(), std::size_t{0});
  match_messages();
  match_sums();
  if (problems_.empty()) add_edges();
}

std::string StageGraph::name(const OpOfStage& at) const {
  const Program& program = *programs_[static_cast<std::size_t>(at.stage)];
  return fmt::format("{} of stage {}", describe(program, op_of(at)), at.stage);
}

void StageGraph::merge(const OpOfStage& a, const OpOfStage& b) {
  for (int body = 0; body < bodies_; ++body) merged_[own_node(b, body)] = own_node(a, body);
}

void StageGraph::match_messages() {
  const auto stages = static_cast<int>(programs_.size());
  std::map<std::pair<int, int>, Channel> channels;  // by direction and sender
  for_each_op([&](const OpOfStage& at) {
    const Op& op = op_of(at);
    if (op.message == Message::kNone) return;
    const int neighbour = traits_of(lane_of(op.kind, op.message)).neighbour;
    const bool sends = op.kind == OpKind::kSend;
    const int direction = sends ? neighbour : -neighbour;
    const int other = (at.stage + neighbour + stages) % stages;
    const int from = sends ? at.stage : other;
    Channel& channel = channels[{direction, from}];
    channel.from = from;
    channel.to = sends ? other : at.stage;
    (sends ? channel.sends : channel.receives).push_back(at);
  });
  for (const auto& [key, channel] : channels) match(channel);
}

void StageGraph::match(const Channel& channel) {
  if (channel.sends.size() != channel.receives.size()) {
    problems_.push_back(fmt::format("stage {} sends {} messages to stage {}, which receives {}",
                                    channel.from, channel.sends.size(), channel.to,
                                    channel.receives.size()));
    return;
  }
  for (std::size_t i = 0; i < channel.sends.size(); ++i) {
    const Op& send = op_of(channel.sends[i]);
    const Op& receive = op_of(channel.receives[i]);
    if (send.reads.front().size_bytes != receive.writes.front().size_bytes ||
        send.message != receive.message || send.parts != receive.parts ||
        send.micro_batch != receive.micro_batch || send.unit != receive.unit ||
        send.group != receive.group || send.chunk != receive.chunk) {
      problems_.push_back(
          fmt::format("{} is met by {}", name(channel.sends[i]), name(channel.receives[i])));
      return;
    }
    merge(channel.sends[i], channel.receives[i]);
  }
}

void StageGraph::match_sums() {
  std::vector<OpOfStage> sums;
  for_each_op([&](const OpOfStage& at) {
    if (op_of(at).kind == OpKind::kGatherSums) sums.push_back(at);
  });
  for (const OpOfStage& at : sums) merge(sums.front(), at);
  if (!sums.empty() && sums.size() != programs_.size()) {
    problems_.push_back(fmt::format("{} of {} stages gather sums", sums.size(), programs_.size()));
  }
}

void StageGraph::add_edges() {
  next_.resize(nodes());
  std::map<std::pair<int, Lane>, std::size_t> last_of_lane;
  for (int body = 0; body < bodies_; ++body) {
    for_each_op([&](const OpOfStage& at) {
      const Op& op = op_of(at);
      const std::size_t now = node(at, body);
      for (const Dependency& edge : op.after) {
        if (body < edge.distance) continue;
        next_[node({at.stage, edge.op}, body - edge.distance)].push_back(now);
      }
      const auto [last, is_first] = last_of_lane.try_emplace({at.stage, op.lane}, 0);
      if (!is_first) next_[last->second].push_back(now);
      last->second = now;
    });
  }
}

std::vector<std::size_t> StageGraph::waits() const {
  std::vector<std::size_t> waits(nodes(), 0);
  for (const auto& following : next_) {
    for (const std::size_t then : following) ++waits[then];
  }
  return waits;
}

std::vector<std::size_t> StageGraph::order() const {
  std::vector<std::size_t> waiting = waits();
  std::vector<std::size_t> order;
  for (std::size_t n = 0; n < nodes(); ++n) {
    if (merged_[n] == n && waiting[n] == 0) order.push_back(n);
  }
  for (std::size_t done = 0; done < order.size(); ++done) {
    for (const std::size_t then : next_[order[done]]) {
      if (--waiting[then] == 0) order.push_back(then);
    }
  }
  return order;
}

// Every node that is left waiting waits for another node that is left, so going back from any of
// them ends in a circle.
std::vector<std::size_t> StageGraph::circle() const {
  std::vector<bool> passes(nodes(), false);
  for (const std::size_t node : order()) passes[node] = true;
  std::map<std::size_t, std::size_t> waits_for;
  for (std::size_t from = 0; from < nodes(); ++from) {
    if (passes[from] || merged_[from] != from) continue;
    for (const std::size_t to : next_[from]) waits_for[to] = from;
  }
  std::vector<std::size_t> path;
  if (waits_for.empty()) return path;
  std::size_t at = waits_for.begin()->first;
  while (std::find(path.begin(), path.end(), at) == path.end()) {
    path.push_back(at);
    at = waits_for.at(at);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), at));
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace terrace
