#include "optim/cuda/rule_cuda.cuh"

// The rule TorchAdamW on a GPU.
template void terrace::rule_cuda<terrace::rules::TorchAdamW>(const KernelContext&,
                                                             const ParameterUpdate&);
