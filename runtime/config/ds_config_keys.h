#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

// The effect of a key of a DeepSpeed configuration.
enum class DsEffect : std::uint8_t {
  kSetting,   // sets a flag
  kHarmless,  // makes no difference at any value
  kNote,      // has no effect; a note says so
  kRefused,   // is not supported
};

struct DsKey {
  std::string_view path;  // with dots: "zero_optimization.stage"
  DsEffect effect = DsEffect::kHarmless;
  std::string_view why = {};    // the reason of a note, or the remedy of a refusal
  std::string_view usual = {};  // JSON of the value at which it makes no difference; empty: none
};

// Returns the keys of the values themselves; objects are not among them.
std::span<const DsKey> ds_keys();

// An object that is taken or refused as a whole, whatever it contains. Unless `switch_name` is
// empty, this happens only if its key of that name, usually `enabled`, is true.
struct DsBlock {
  std::string_view path;
  DsEffect effect = DsEffect::kNote;
  std::string_view why = {};
  std::string_view switch_name = "enabled";  // empty: it has none
};
std::span<const DsBlock> ds_blocks();

}  // namespace terrace
