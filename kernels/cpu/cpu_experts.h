#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// The ops of a layer of experts besides its products: the choice of experts, the sorting of slots,
// the sums over the experts of a row, and the gate of an expert of all rows. Highway with run-time
// dispatch where there is a row to compute on. Sums have an order that the shape alone decides.
namespace terrace {

void cpu_choose_experts(const KernelContext& context, const ChooseExperts& op);
void cpu_choose_experts_backward(const KernelContext& context, const ChooseExpertsBackward& op);
void cpu_sort_slots(const KernelContext& context, const SortSlots& op);
void cpu_sum_expert_rows(const KernelContext& context, const SumExpertRows& op);
void cpu_weigh_expert_rows(const KernelContext& context, const WeighExpertRows& op);
void cpu_gate_rows(const KernelContext& context, const GateRows& op);
void cpu_gate_rows_backward(const KernelContext& context, const GateRowsBackward& op);

std::size_t cpu_sort_slots_workspace(const SortSlots& op, int workers);

}  // namespace terrace
