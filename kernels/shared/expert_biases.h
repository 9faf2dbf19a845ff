#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/expert_products.h"
#include "kernels/shared/map.h"

// The biases of experts. How many rows an expert has is known on the GPU alone: launches have
// blocks for all slots, and a block finds its expert among the offsets.
namespace terrace::shared {

// The biases of neighbouring experts, or their gradients, and where the experts' sorted rows are.
template <typename T>
struct BiasRows {
  T* data;
  std::int64_t stride, width;
  const std::int32_t* offsets;
  std::int64_t experts;

  TERRACE_KERNEL T* of(std::int64_t expert) const { return data + expert * stride; }
  TERRACE_KERNEL bool have(std::int64_t row) const {
    return offsets[0] <= row && row < offsets[experts];
  }
  // Returns the expert that has the sorted row, by halving.
  TERRACE_KERNEL std::int64_t expert_of(std::int64_t row) const {
    std::int64_t begin = 0;
    std::int64_t end = experts;
    while (end - begin > 1) {
      const std::int64_t middle = begin + (end - begin) / 2;
      if (row < offsets[middle]) {
        end = middle;
      } else {
        begin = middle;
      }
    }
    return begin;
  }
};

// Checks that there is a bias of N elements for each expert, and returns where they are.
template <typename T>
BiasRows<T> bias_rows(const ExpertRows& rows, const StridedRows& biases, const TensorView& matrix) {
  const std::int64_t experts = rows.offsets.elements() - 1;
  TERRACE_CHECK_EQ(biases.rows, experts);
  TERRACE_CHECK_EQ(biases.width, matrix.elements() / matrix.shape[0]);
  TERRACE_CHECK(DTypeOf<std::remove_const_t<T>>::value == biases.dtype);
  return {reinterpret_cast<T*>(biases.data), biases.stride, biases.width,
          rows.offsets.as<std::int32_t>(), experts};
}

template <typename T>
struct AddExpertBiasBody {
  BiasRows<const T> biases;
  T* y;

  TERRACE_KERNEL void operator()(std::int64_t row, std::int64_t first, int count) const {
    if (!biases.have(row)) return;
    const T* const bias = biases.of(biases.expert_of(row));
    for (std::int64_t i = first; i < first + count; ++i) {
      T& sum = y[row * biases.width + i];
      sum = round_to<T>(widened(sum) + widened(bias[i]));
    }
  }
};

template <typename Launcher>
void add_expert_bias(Launcher& launcher, const AddExpertBias& op) {
  with_compute_type(op.y.dtype, [&]<typename T>(std::type_identity<T>) {
    const AddExpertBiasBody<T> body{bias_rows<const T>(op.rows, op.biases, op.y), op.y.as<T>()};
    launch_map<kPackOf<T>>(launcher, "add_expert_bias", op.rows.order.elements(), op.biases.width,
                           body);
  });
}

// A thread adds up a column of an expert's rows, in their order.
template <typename T>
struct ExpertBiasGradientBody {
  BiasRows<float> dbiases;
  SideRows<T> dy;
  const float* weight;  // may be null
  GradientMode mode;

  TERRACE_KERNEL void operator()(std::int64_t expert, std::int64_t column, int) const {
    float sum = 0;
    for (std::int64_t row = dbiases.offsets[expert]; row < dbiases.offsets[expert + 1]; ++row) {
      const float factor = weight == nullptr ? 1.0F : weight[dy.order[row]];
      sum = ::fmaf(factor, dy.at(row, column), sum);
    }
    join_gradient(dbiases.of(expert)[column], sum, mode);
  }
};

template <typename Launcher>
void expert_bias_gradient(Launcher& launcher, const ExpertBiasGradient& op) {
  with_compute_type(op.dy.matrix.dtype, [&]<typename T>(std::type_identity<T>) {
    const ExpertBiasGradientBody<T> body{
        bias_rows<float>(op.rows, op.dbiases, op.dy.matrix), side_rows<T>(op.dy, op.rows),
        op.weight.empty() ? nullptr : op.weight.as<float>(), op.mode};
    launch_map<1>(launcher, "expert_bias_gradient", op.dbiases.rows, op.dbiases.width, body);
  });
}

// A block handles a sorted row: each thread adds some of its products in order, then block.sum()
// adds the threads' sums.
template <typename T>
struct AddBiasShareKernel {
  BiasRows<const T> biases;
  SideRows<T> dy;
  float* dweight;

  static constexpr int kThreads = 128;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    const std::int64_t row = block.index();
    if (!biases.have(row)) return;
    const T* const bias = biases.of(biases.expert_of(row));
    typename Block::template PerThread<float> sums;
    block.for_each_thread([&](int t) {
      float sum = 0;
      for (std::int64_t i = t; i < biases.width; i += kThreads) {
        sum = ::fmaf(dy.at(row, i), widened(bias[i]), sum);
      }
      sums[t] = sum;
    });
    const float total = block.sum(sums);
    block.for_each_thread([&](int t) {
      if (t == 0) dweight[dy.order[row]] += total;
    });
  }
};

template <typename Launcher>
void add_bias_share(Launcher& launcher, const AddBiasShare& op) {
  TERRACE_CHECK_EQ(op.dweight.elements(), op.rows.order.elements());
  with_compute_type(op.dy.matrix.dtype, [&]<typename T>(std::type_identity<T>) {
    using Kernel = AddBiasShareKernel<T>;
    const Kernel kernel{bias_rows<const T>(op.rows, op.biases, op.dy.matrix),
                        side_rows<T>(op.dy, op.rows), op.dweight.as<float>()};
    launcher.template launch<Kernel::kThreads>("add_bias_share", kernel, op.rows.order.elements());
  });
}

}  // namespace terrace::shared
