#include "runtime/config/unknown_flag.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "runtime/config/foreign_flags.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

constexpr std::string_view kOfTrain = "max-steps";
constexpr std::string_view kOfSample = "max-new-tokens";

// A flag of the training interface that is not built yet, with a text about what it will do.
struct UnbuiltFlag {
  std::string_view name;
  std::string_view help;
};

constexpr auto kUnbuiltFlags = std::to_array<UnbuiltFlag>({
    {"expert-parallel", "ranks that share the experts of a layer"},
    {"muon-momentum", "for --optimizer muon"},
});

bool has_flag(std::span<const FlagSpec> flags, std::string_view name) {
  return std::ranges::find(flags, name, &FlagSpec::name) != flags.end();
}

bool is_train(std::span<const FlagSpec> flags) { return has_flag(flags, kOfTrain); }

bool is_flag_of_train(std::string_view name) {
  return std::ranges::any_of(train_flags(),
                             [&](const TrainFlag& flag) { return flag.spec.name == name; });
}

// Returns a name in the spelling of our flags: "--Training.seq_len" becomes "training-seq-len".
std::string plain_name(std::string_view name) {
  std::string plain(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  for (char& c : plain) {
    if (c == '_' || c == '.') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return plain;
}

const ForeignFlag* find_foreign(std::string_view name, std::span<const FlagSpec> flags) {
  const bool is_sample = has_flag(flags, kOfSample);
  for (const ForeignFlag& foreign : is_sample ? foreign_sample_flags() : foreign_flags()) {
    const bool applies = foreign.ours.empty() || has_flag(flags, foreign.ours);
    if (foreign.name == name && applies) return &foreign;
  }
  return nullptr;
}

// Returns the foreign flag of this name. torchtitan's names begin with a section, which some of our
// names contain too.
const ForeignFlag* foreign_flag(std::string_view written, std::span<const FlagSpec> flags) {
  if (!is_train(flags) && !has_flag(flags, kOfSample)) return nullptr;
  const std::string plain = plain_name(written);
  constexpr auto kRecomputes = std::to_array<std::string_view>(
      {"activation-checkpoint", "checkpoint-activation", "recompute-"});
  const bool recomputes = std::ranges::any_of(
      kRecomputes, [&](std::string_view prefix) { return plain.starts_with(prefix); });
  if (recomputes && is_train(flags)) return find_foreign("gradient-checkpointing", flags);
  if (const ForeignFlag* whole = find_foreign(plain, flags)) return whole;
  const std::size_t dot = written.rfind('.');
  if (dot == std::string_view::npos) return nullptr;
  return find_foreign(plain_name(written.substr(dot + 1)), flags);
}

bool is_of_name(char c) { return c == '-' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Returns the text with every "--a-b" replaced by the key "a_b".
std::string with_keys(const std::string& text) {
  std::string keyed;
  for (std::size_t at = 0; at < text.size();) {
    if (text.compare(at, 2, "--") != 0) {
      keyed += text[at++];
      continue;
    }
    for (at += 2; at < text.size() && is_of_name(text[at]); ++at) {
      keyed += text[at] == '-' ? '_' : text[at];
    }
  }
  return keyed;
}

// Returns what the user can do about the unknown flag, in terms of flags.
std::string remedy_for(std::string_view written, std::span<const FlagSpec> flags) {
  const std::string plain = plain_name(written);
  if (has_flag(flags, plain)) return fmt::format("it is spelled --{}", plain);
  if (const ForeignFlag* foreign = foreign_flag(written, flags)) {
    if (foreign->ours.empty()) return std::string(foreign->how);
    return fmt::format("here it is --{}: {}", foreign->ours, foreign->how);
  }
  const std::size_t dot = written.rfind('.');
  const std::string last = plain_name(dot == std::string_view::npos ? "" : written.substr(dot + 1));
  if (has_flag(flags, last)) return fmt::format("here it is called --{}", last);
  if (is_flag_of_train(plain) && !is_train(flags)) {
    return fmt::format("--{} is a flag of terrace train; --help lists the flags of this command",
                       plain);
  }
  return fmt::format("did you mean --{}?", nearest_flag(plain, flags));
}

constexpr const char* kLeaveOut = "leave it out; --help lists what is built";

bool is_unbuilt(std::string_view written, std::span<const FlagSpec> flags) {
  const std::string plain = plain_name(written);
  return is_train(flags) && !has_flag(flags, plain) &&
         std::ranges::find(kUnbuiltFlags, plain, &UnbuiltFlag::name) != kUnbuiltFlags.end();
}

}  // namespace

ConfigError unknown_flag_error(std::string_view written, std::span<const FlagSpec> flags) {
  if (is_unbuilt(written, flags)) {
    return {fmt::format("{} is not built yet", written), kLeaveOut};
  }
  const std::string remedy = remedy_for(written, flags);
  return {fmt::format("{}: unknown flag", written),
          remedy + (remedy.ends_with('?') ? " --help lists all" : "")};
}

ConfigError unknown_key_error(std::string_view path, std::string_view key,
                              std::span<const FlagSpec> flags) {
  if (is_unbuilt(key, flags)) {
    return {fmt::format("{}: {} is not built yet", path, key),
            "leave it out; terrace train --help lists what is built"};
  }
  return {fmt::format("{}: unknown key {}", path, key), with_keys(remedy_for(key, flags))};
}

std::string unbuilt_flags_help(std::span<const FlagSpec> flags) {
  constexpr int kColumn = 42;
  std::string text;
  for (const UnbuiltFlag& flag : kUnbuiltFlags) {
    if (!is_unbuilt(flag.name, flags)) continue;
    text += fmt::format("  --{:<{}}{}\n", flag.name, kColumn - 2, flag.help);
  }
  return text.empty() ? text : "\nNot built yet (exit 2):\n" + text;
}

}  // namespace terrace
