#include "optim/cuda/update_cuda.h"

#include "base/check.h"
#include "optim/adamw.h"
#include "optim/cuda/adamw_cuda.h"

namespace terrace {

void update_cuda(const KernelContext& context, const UpdateRule& rule,
                 const ParameterUpdate& update) {
  TERRACE_CHECK(&rule == &adamw_rule());
  adamw_cuda(context, update);
}

}  // namespace terrace
