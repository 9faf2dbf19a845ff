// The rule AdamW on the CPU.
#define TERRACE_RULE AdamW
#define TERRACE_RULE_TEXT "optim/rules/adamw.inl"
#define HWY_TARGET_INCLUDE "optim/cpu/rule_on_targets.inl"
#include "optim/cpu/rule_on_targets.inl"
