// The rule Sgd on the CPU.
#define TERRACE_RULE Sgd
#define TERRACE_RULE_TEXT "optim/rules/sgd.inl"
#define HWY_TARGET_INCLUDE "optim/cpu/rule_on_targets.inl"
#include "optim/cpu/rule_on_targets.inl"
