#pragma once

#include "kernels/kernel_context.h"
#include "optim/update_rule.h"

namespace terrace {

// Does what update_cuda() does, by the rule of this type (optim/rules/rules.h). Each rule's source
// in this folder instantiates it.
template <typename Rule>
void rule_cuda(const KernelContext& context, const ParameterUpdate& update);

}  // namespace terrace
