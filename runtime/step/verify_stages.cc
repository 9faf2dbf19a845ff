#include "runtime/step/verify_stages.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <set>
#include <tuple>

namespace terrace {
namespace {

// One end of a message.
struct MessageEnd {
  int from = 0;
  int to = 0;
  bool sends = false;
};

// Whether an op is one, of a stage.
bool is_message(const Op& op, int stage, int stages, MessageEnd& end) {
  switch (op.kind) {
    case OpKind::kSendHidden:
      end = {stage, stage + 1, true};
      return true;
    case OpKind::kReceiveHidden:
      end = {stage - 1, stage, false};
      return true;
    case OpKind::kSendHiddenGradient:
      end = {stage, stage - 1, true};
      return true;
    case OpKind::kReceiveHiddenGradient:
      end = {stage + 1, stage, false};
      return true;
    case OpKind::kSendUpdated:
    case OpKind::kSendTiedGradient:
      end = {stage, stages - 1 - stage, true};
      return true;
    case OpKind::kReceiveUpdated:
    case OpKind::kReceiveTiedGradient:
      end = {stages - 1 - stage, stage, false};
      return true;
    default:
      return false;
  }
}

class StageVerifier {
 public:
  explicit StageVerifier(std::span<const Program> programs) : programs_(programs) {
    for (const Program& program : programs) {
      first_.push_back(nodes_);
      nodes_ += program.ops.size();
    }
    merged_.resize(2 * nodes_);
    std::iota(merged_.begin(), merged_.end(), std::size_t{0});
  }

  std::vector<std::string> run() {
    match_messages();
    match_sums();
    if (problems_.empty()) look_for_cycle();
    return problems_;
  }

 private:
  using Channel = std::tuple<Lane, int, int>;  // from, to
  struct OpOfStage {
    int stage = 0;
    OpId op = 0;
  };

  const Op& op_of(const OpOfStage& at) const {
    return programs_[static_cast<std::size_t>(at.stage)].ops[static_cast<std::size_t>(at.op)];
  }
  // In the first or the second body.
  std::size_t node(const OpOfStage& at, int body) const {
    return static_cast<std::size_t>(body) * nodes_ + first_[static_cast<std::size_t>(at.stage)] +
           static_cast<std::size_t>(at.op);
  }
  std::string name(const OpOfStage& at) const {
    return fmt::format("{} of stage {}",
                       describe(programs_[static_cast<std::size_t>(at.stage)], op_of(at)),
                       at.stage);
  }

  template <typename Visit>
  void for_each_op(Visit visit) const {
    for (int stage = 0; stage < static_cast<int>(programs_.size()); ++stage) {
      const auto& ops = programs_[static_cast<std::size_t>(stage)].ops;
      for (OpId op = 0; op < static_cast<OpId>(ops.size()); ++op) visit(OpOfStage{stage, op});
    }
  }

  void merge(const OpOfStage& a, const OpOfStage& b) {
    for (const int body : {0, 1}) merged_[node(b, body)] = node(a, body);
  }

  void match_messages() {
    std::map<Channel, std::vector<OpOfStage>> sent;
    std::map<Channel, std::vector<OpOfStage>> received;
    for_each_op([&](const OpOfStage& at) {
      MessageEnd end;
      const Op& op = op_of(at);
      if (!is_message(op, at.stage, static_cast<int>(programs_.size()), end)) return;
      (end.sends ? sent : received)[{op.lane, end.from, end.to}].push_back(at);
      if (!end.sends) sent[{op.lane, end.from, end.to}];
    });
    for (const auto& [channel, sends] : sent) match(sends, received[channel], channel);
  }

  void match(const std::vector<OpOfStage>& sends, const std::vector<OpOfStage>& receives,
             const Channel& channel) {
    if (sends.size() != receives.size()) {
      problems_.push_back(fmt::format("stage {} sends {} messages to stage {}, which receives {}",
                                      std::get<1>(channel), sends.size(), std::get<2>(channel),
                                      receives.size()));
      return;
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const Op& send = op_of(sends[i]);
      const Op& receive = op_of(receives[i]);
      if (send.reads.front().size_bytes != receive.writes.front().size_bytes ||
          send.deferred != receive.deferred || send.micro_batch != receive.micro_batch ||
          send.chunk != receive.chunk) {
        problems_.push_back(fmt::format("{} is met by {}", name(sends[i]), name(receives[i])));
        return;
      }
      merge(sends[i], receives[i]);
    }
  }

  void match_sums() {
    std::vector<OpOfStage> sums;
    for_each_op([&](const OpOfStage& at) {
      if (op_of(at).kind == OpKind::kGatherSums) sums.push_back(at);
    });
    for (const OpOfStage& at : sums) merge(sums.front(), at);
    if (!sums.empty() && sums.size() != programs_.size()) {
      problems_.push_back(
          fmt::format("{} of {} stages gather sums", sums.size(), programs_.size()));
    }
  }

  void look_for_cycle() {
    std::vector<std::vector<std::size_t>> next(2 * nodes_);
    std::vector<std::size_t> waits(2 * nodes_, 0);
    const auto add_edge = [&](std::size_t from, std::size_t to) {
      from = merged_[from];
      to = merged_[to];
      next[from].push_back(to);
      ++waits[to];
    };
    std::map<std::pair<int, Lane>, std::size_t> last_of_lane;
    for (const int body : {0, 1}) {
      for_each_op([&](const OpOfStage& at) {
        const Op& op = op_of(at);
        for (const Dependency& edge : op.after) {
          if (body - edge.distance < 0) continue;
          add_edge(node({at.stage, edge.op}, body - edge.distance), node(at, body));
        }
        const auto [last, is_first] = last_of_lane.try_emplace({at.stage, op.lane}, 0);
        if (!is_first) add_edge(last->second, node(at, body));
        last->second = node(at, body);
      });
    }
    std::vector<std::size_t> ready;
    for (std::size_t n = 0; n < 2 * nodes_; ++n) {
      if (waits[n] == 0) ready.push_back(n);
    }
    while (!ready.empty()) {
      const std::size_t now = ready.back();
      ready.pop_back();
      for (const std::size_t then : next[now]) {
        if (--waits[then] == 0) ready.push_back(then);
      }
    }
    report_cycle(next, waits);
  }

  // Of what is left waiting, everything waits for something that is left: going back from any of it
  // ends up in a circle.
  void report_cycle(const std::vector<std::vector<std::size_t>>& next,
                    const std::vector<std::size_t>& waits) {
    std::map<std::size_t, std::size_t> waits_for;
    for (std::size_t from = 0; from < next.size(); ++from) {
      if (waits[from] == 0) continue;
      for (const std::size_t to : next[from]) waits_for[to] = from;
    }
    if (waits_for.empty()) return;
    std::map<std::size_t, std::string> names;
    for_each_op([&](const OpOfStage& at) {
      for (const int body : {0, 1}) names.emplace(merged_[node(at, body)], name(at));
    });
    std::set<std::size_t> seen;
    std::size_t at = waits_for.begin()->first;
    while (seen.insert(at).second) at = waits_for.at(at);
    std::string text = fmt::format("{} waits for itself:", names.at(at));
    for (std::size_t step = waits_for.at(at); step != at; step = waits_for.at(step)) {
      text += fmt::format(" it waits for {};", names.at(step));
    }
    problems_.push_back(text);
  }

  std::span<const Program> programs_;
  std::vector<std::size_t> first_;   // node of each stage's first op
  std::size_t nodes_ = 0;            // of one body
  std::vector<std::size_t> merged_;  // the node that stands for a node
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify_stages(std::span<const Program> programs) {
  return StageVerifier(programs).run();
}

}  // namespace terrace
