#pragma once

#include <span>
#include <string_view>

namespace terrace {

// A flag that people know from another program.
struct ForeignFlag {
  std::string_view name;  // with dashes, without those in front
  std::string_view ours;  // the flag that does the same; empty: there is none
  std::string_view how;   // how its value translates, or what to do without it
};

// The flags of Hugging Face's Trainer, torchtitan, Megatron-LM and DeepSpeed that `terrace train`
// has under another name, or does without.
std::span<const ForeignFlag> foreign_flags();

}  // namespace terrace
