#include "optim/cuda/rule_cuda.cuh"

// The rule AdamW on a GPU.
template void terrace::rule_cuda<terrace::rules::AdamW>(const KernelContext&,
                                                        const ParameterUpdate&);
