#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/compare/run_diff.h"

namespace terrace {
namespace {

using Document = nlohmann::ordered_json;
using Cause = OpDifference::Cause;

// How many of the ops that differ are shown. The others only follow.
constexpr std::size_t kShownOps = 4;
constexpr std::size_t kListedOps = 100;

std::string list(const std::vector<HashKey>& values, const HashedModel& model) {
  std::string text;
  constexpr std::size_t kShown = 4;
  for (std::size_t v = 0; v < values.size() && v < kShown; ++v) {
    text += (v == 0 ? "" : ", ") + describe_value(values[v], model);
  }
  if (values.size() > kShown) text += fmt::format(" and {} more", values.size() - kShown);
  return text;
}

// Returns what is known of the op, as the rest of a sentence that begins with the op.
std::string finding(const OpDifference& op, const HashedModel& model) {
  const std::string written = list(op.differing_writes, model);
  const std::string read = list(op.differing_reads, model);
  const std::string results =
      written.empty() ? "all that it writes is equal" : "what it writes differs: " + written;
  switch (op.cause) {
    case Cause::kInput:
      return "differs";
    case Cause::kComputes: {
      const std::string equal = list(op.equal_reads, model);
      const std::string inputs = equal.empty() ? "" : fmt::format(" ({})", equal);
      return fmt::format(
          "what it writes differs although all that it reads is equal{}: it computes something "
          "else. It writes: {}",
          inputs, written);
    }
    case Cause::kStart:
      return fmt::format(
          "what it reads differs ({}), and no step before is compared: the runs begin with other "
          "parameters or optimizer state",
          read);
    case Cause::kMoved:
      return fmt::format(
          "what it reads differs ({}), although no op before it has written anything else: these "
          "bytes changed after they were written, between memories, drives or ranks; {}",
          read, results);
    case Cause::kFollows:
      break;
  }
  if (read.empty()) return results;
  return fmt::format("it reads what differs ({}); {}", read, results);
}

std::string hash_lines(const HashComparison& hashes) {
  if (!hashes.obstacle.empty()) {
    return fmt::format("hashes: cannot be compared: {}\n", hashes.obstacle);
  }
  if (!hashes.step.has_value()) {
    const std::string end =
        hashes.end.empty() ? "" : fmt::format("; later steps cannot be compared: {}", hashes.end);
    return fmt::format("hashes: equal in {} step{}, {} to {} ({} values){}\n", hashes.steps,
                       hashes.steps == 1 ? "" : "s", hashes.first_step, hashes.last_step,
                       hashes.values, end);
  }
  std::string text = fmt::format("step {} is the first that differs", *hashes.step);
  if (hashes.steps > 1) {
    text += fmt::format("; {} step{} before it, from {} on, {} equal", hashes.steps - 1,
                        hashes.steps == 2 ? "" : "s", hashes.first_step,
                        hashes.steps == 2 ? "is" : "are");
  }
  text += "\n";
  for (std::size_t op = 0; op < hashes.ops.size() && op < kShownOps; ++op) {
    const bool is_input = hashes.ops[op].cause == Cause::kInput;
    text +=
        fmt::format("  {}{}{} {}\n",
                    op == 0 ? "first: " : "then:  ", describe_op(hashes.ops[op].op, hashes.model),
                    is_input ? "" : ":", finding(hashes.ops[op], hashes.model));
  }
  if (hashes.ops.size() > kShownOps) {
    text += fmt::format("  and {} more ops of this step\n", hashes.ops.size() - kShownOps);
  }
  return text;
}

std::string_view name_of(Cause cause) {
  switch (cause) {
    case Cause::kInput:
      return "input";
    case Cause::kComputes:
      return "computes";
    case Cause::kFollows:
      return "follows";
    case Cause::kMoved:
      return "moved";
    case Cause::kStart:
      return "start";
  }
  return "";
}

Document values_json(const std::vector<HashKey>& values, const HashedModel& model) {
  Document names = Document::array();
  for (const HashKey& value : values) names.push_back(describe_value(value, model));
  return names;
}

Document op_json(const OpDifference& op, const HashedModel& model) {
  Document json = {{"name", describe_op(op.op, model)}, {"op", terrace::name_of(op.op.op)}};
  if (op.op.unit >= 0 && op.op.unit < std::ssize(model.units)) {
    json["unit"] = op.op.unit;
    json["unit_name"] = model.units[static_cast<std::size_t>(op.op.unit)];
  }
  if (op.op.micro_batch >= 0) json["micro_batch"] = global_micro_batch(op.op, model);
  if (op.op.op > HashedOp::kBackward && op.op.chunk >= 0) json["chunk"] = op.op.chunk;
  json["data_rank"] = op.op.data_rank;
  json["tensor_rank"] = op.op.tensor_rank;
  json["cause"] = name_of(op.cause);
  json["differing_reads"] = values_json(op.differing_reads, model);
  json["equal_reads"] = values_json(op.equal_reads, model);
  json["differing_writes"] = values_json(op.differing_writes, model);
  json["equal_writes"] = values_json(op.equal_writes, model);
  json["finding"] = finding(op, model);
  return json;
}

Document hashes_json(const HashComparison& hashes) {
  if (!hashes.obstacle.empty()) return {{"compared", false}, {"reason", hashes.obstacle}};
  Document json = {{"compared", true},
                   {"first_step", hashes.first_step},
                   {"last_step", hashes.last_step},
                   {"steps", hashes.steps},
                   {"values", hashes.values},
                   {"values_of_one_run", hashes.only_one}};
  if (!hashes.end.empty()) json["end"] = hashes.end;
  json["differing_step"] = hashes.step ? Document(*hashes.step) : Document();
  json["differing_ops"] = hashes.ops.size();
  Document& ops = json["ops"] = Document::array();
  for (std::size_t op = 0; op < hashes.ops.size() && op < kListedOps; ++op) {
    ops.push_back(op_json(hashes.ops[op], hashes.model));
  }
  return json;
}

std::string option_lines(const RunDiff& diff) {
  std::string text;
  for (const bool may_change : {true, false}) {
    std::string lines;
    for (const OptionDifference& option : diff.options) {
      if (option.may_change_results != may_change) continue;
      const auto shown = [](const std::string& value) { return value.empty() ? "not set" : value; };
      lines += fmt::format("  {}: {} and {}\n", option.key, shown(option.a), shown(option.b));
    }
    if (lines.empty()) continue;
    text +=
        may_change ? "options that may change results:\n" : "options that do not change results:\n";
    text += lines;
  }
  return text;
}

}  // namespace

std::string diff_text(const RecordedRun& a, const RecordedRun& b, const RunDiff& diff) {
  std::string text = fmt::format("{} and {}: {}\n", a.path, b.path,
                                 diff.is_equal ? "equal in all that both have recorded" : "differ");
  if (diff.hashes) text += hash_lines(*diff.hashes);
  for (const ColumnDifference& column : diff.columns) {
    text += fmt::format("{} differs from step {} on: {} and {}\n", column.column, column.step,
                        column.a, column.b);
  }
  if (diff.rows > 0 && diff.columns.empty()) {
    text += fmt::format("metrics.jsonl: equal in {} step{}, {} to {}\n", diff.rows,
                        diff.rows == 1 ? "" : "s", diff.first_row, diff.last_row);
  }
  text += option_lines(diff);
  for (const std::string& note : diff.notes) text += fmt::format("note: {}\n", note);
  return text;
}

std::string diff_json(const RecordedRun& a, const RecordedRun& b, const RunDiff& diff) {
  Document json = {{"equal", diff.is_equal}, {"runs", {a.path, b.path}}};
  json["hashes"] = diff.hashes ? hashes_json(*diff.hashes) : Document();
  Document& columns = json["metrics"] = Document::array();
  for (const ColumnDifference& column : diff.columns) {
    columns.push_back({{"column", column.column},
                       {"step", column.step},
                       {"values", {Document::parse(column.a), Document::parse(column.b)}}});
  }
  json["rows"] = {{"compared", diff.rows}, {"first", diff.first_row}, {"last", diff.last_row}};
  Document& options = json["options"] = Document::array();
  for (const OptionDifference& option : diff.options) {
    options.push_back({{"key", option.key},
                       {"values", {option.a, option.b}},
                       {"may_change_results", option.may_change_results}});
  }
  json["notes"] = diff.notes;
  return json.dump(2, ' ', false, Document::error_handler_t::replace);
}

}  // namespace terrace
