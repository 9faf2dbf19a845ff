#include "optim/cuda/rule_cuda.cuh"

// The rule Lion on a GPU.
template void terrace::rule_cuda<terrace::rules::Lion>(const KernelContext&,
                                                       const ParameterUpdate&);
