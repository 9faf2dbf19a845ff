#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

// What becomes of a key of a DeepSpeed configuration.
enum class DsEffect : std::uint8_t {
  kSetting,   // a flag is set by it
  kHarmless,  // at any value
  kNote,      // has no effect, which is said
  kRefused,   // is not done here
};

struct DsKey {
  std::string_view path;  // with dots: "zero_optimization.stage"
  DsEffect effect = DsEffect::kHarmless;
  std::string_view why = {};    // of a note the reason, of a refusal the remedy
  std::string_view usual = {};  // JSON of the value at which it makes no difference; empty: none
};

// Of the values themselves; objects are not among them.
std::span<const DsKey> ds_keys();

// Objects that are taken or refused whole, whatever is in them. Where they have a key `enabled`, or
// `switch_name` in place of it, only if it is true.
struct DsBlock {
  std::string_view path;
  DsEffect effect = DsEffect::kNote;
  std::string_view why = {};
  std::string_view switch_name = "enabled";  // empty: they have none
};
std::span<const DsBlock> ds_blocks();

}  // namespace terrace
