#include "runtime/step/verify_stages.h"

#include <fmt/format.h>

#include <map>

#include "runtime/step/stage_graph.h"

namespace terrace {
namespace {

std::string describe_circle(const StageGraph& graph, const std::vector<std::size_t>& circle) {
  std::map<std::size_t, std::string> names;
  graph.for_each_op([&](const OpOfStage& at) {
    for (const int body : {0, 1}) names.emplace(graph.node(at, body), graph.name(at));
  });
  std::string text = fmt::format("{} waits for itself:", names.at(circle.back()));
  for (std::size_t i = circle.size() - 1; i > 0; --i) {
    text += fmt::format(" it waits for {};", names.at(circle[i - 1]));
  }
  return text;
}

}  // namespace

std::vector<std::string> verify_stages(std::span<const Program* const> programs) {
  const StageGraph graph(programs, 2);
  if (!graph.problems().empty()) return graph.problems();
  const std::vector<std::size_t> circle = graph.circle();
  if (circle.empty()) return {};
  return {describe_circle(graph, circle)};
}

std::vector<std::string> verify_stages(std::span<const Program> programs) {
  return verify_stages(pointers_to(programs));
}

}  // namespace terrace
