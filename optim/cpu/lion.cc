// The rule Lion on the CPU.
#define TERRACE_RULE Lion
#define TERRACE_RULE_TEXT "optim/rules/lion.inl"
#define HWY_TARGET_INCLUDE "optim/cpu/rule_on_targets.inl"
#include "optim/cpu/rule_on_targets.inl"
