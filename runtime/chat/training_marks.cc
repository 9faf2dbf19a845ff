#include "runtime/chat/training_marks.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

#include "runtime/chat/row_keys.h"

namespace terrace {
namespace {

using jinja::Mapping;
using jinja::Value;

// The keys of a message, each with true or 1 for a message that is trained on. They are OpenAI's,
// axolotl's, ms-swift's, and others'.
constexpr auto kTrainingMarks = std::to_array<std::string_view>(
    {"weight", "train", "training", "trainable", "loss", "loss_mask"});
// Keys that mark what is trained on and what is not by different rules in different programs.
constexpr auto kUnclearMarks =
    std::to_array<std::string_view>({"mask", "masks", "masked", "labels", "train_on",
                                     "train_detail", "training_detail", "loss_scale"});
// Further keys of a row that say what is trained on.
constexpr auto kRowMarks =
    std::to_array<std::string_view>({"weights", "loss_masks", "train_on_input", "train_on_inputs"});

constexpr const char* kInstead = "give messages \"train\": true or false instead";

bool truth_of_mark(const Value& value, const std::string& path, const std::string& place) {
  if (value.is_number() && (value.number() == 0 || value.number() == 1)) return value.is_true();
  throw wrong_key(place, path, fmt::format("is {}, not true, false, 1 or 0", shown_value(value)),
                  "give one of these");
}

// Removes the marks of a turn's message. Returns whether it is trained on; nothing for a message
// without marks.
std::optional<bool> take_mark(Turn& turn, const std::string& place) {
  for (const std::string_view key : kUnclearMarks) {
    if (!turn.message.contains(key)) continue;
    throw wrong_key(place, fmt::format("{}.{}", turn.path, key),
                    "does not have one meaning that all programs agree on", kInstead);
  }
  std::optional<bool> mark;
  for (const std::string_view key : kTrainingMarks) {
    const Value* const value = turn.message.find(key);
    if (value == nullptr) continue;
    const std::string path = fmt::format("{}.{}", turn.path, key);
    const bool truth = truth_of_mark(*value, path, place);
    if (mark.value_or(truth) != truth) {
      throw wrong_key(place, path, "contradicts another key of the message",
                      "keep one key that says whether the message is trained on");
    }
    mark = truth;
    turn.message.erase(key);
  }
  return mark;
}

}  // namespace

std::vector<bool> take_training_marks(std::vector<Turn>& turns, std::size_t context,
                                      const std::string& place) {
  std::vector<bool> trained;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const bool can_be = turns[i].has_role("assistant") && i >= context;
    const std::optional<bool> mark = take_mark(turns[i], place);
    if (mark.value_or(false) && !can_be) {
      throw wrong_key(place, turns[i].path,
                      "is marked to be trained on, and is not an answer of the assistant",
                      "mark answers only");
    }
    trained.push_back(can_be && mark.value_or(true));
  }
  return trained;
}

void check_row_marks(const Mapping& row, const std::string& place) {
  const auto check = [&](std::string_view key) {
    if (!row.contains(key)) return;
    throw wrong_key(place, key,
                    "is not read beside a conversation, where it could say what is trained on",
                    fmt::format("{}, or remove the key", kInstead));
  };
  for (const std::string_view key : kTrainingMarks) check(key);
  for (const std::string_view key : kUnclearMarks) check(key);
  for (const std::string_view key : kRowMarks) check(key);
}

}  // namespace terrace
