#pragma once

#include <span>
#include <string_view>

namespace terrace {

// A flag that users know from another program.
struct ForeignFlag {
  std::string_view name;  // with the inner dashes, without the leading ones
  std::string_view ours;  // the flag that does the same; empty: there is none
  std::string_view how;   // how its value translates, or what to do without it
};

// Returns the flags of Hugging Face's Trainer, TRL, axolotl, LLaMA-Factory, torchtune, unsloth,
// torchtitan, Megatron-LM and DeepSpeed that `terrace train` has under another name, or does not
// need.
std::span<const ForeignFlag> foreign_flags();

// Returns the flags of programs that generate text that `terrace sample` has under another name, or
// does not need.
std::span<const ForeignFlag> foreign_sample_flags();

}  // namespace terrace
