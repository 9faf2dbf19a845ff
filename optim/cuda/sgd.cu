#include "optim/cuda/rule_cuda.cuh"

// The rule Sgd on a GPU.
template void terrace::rule_cuda<terrace::rules::Sgd>(const KernelContext&, const ParameterUpdate&);
