// The rule TorchAdamW on the CPU.
#define TERRACE_RULE TorchAdamW
#define TERRACE_RULE_TEXT "optim/rules/torch_adamw.inl"
#define HWY_TARGET_INCLUDE "optim/cpu/rule_on_targets.inl"
#include "optim/cpu/rule_on_targets.inl"
