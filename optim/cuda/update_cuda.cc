#include "optim/cuda/update_cuda.h"

#include "base/check.h"
#include "optim/cuda/rule_cuda.h"
#include "optim/rules/rules.h"

namespace terrace {

void update_cuda(const KernelContext& context, const UpdateRule& rule,
                 const ParameterUpdate& update) {
  const bool is_listed =
      with_type_of(rule, [&]<typename Rule>() { rule_cuda<Rule>(context, update); });
  TERRACE_CHECK(is_listed);
}

}  // namespace terrace
