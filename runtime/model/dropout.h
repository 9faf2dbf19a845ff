#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "runtime/model/layers.h"

// Dropout of the input of an adapter's A, in training (lora_dropout of Hugging Face's PEFT). Each
// layer drops elements of its own. Which ones depends on the seed, the layer, and the row's sample,
// position and column alone. So nothing is kept for the backward: it drops the same elements again.
namespace terrace {

// Returns the Philox key of dropout. It is derived from the training's seed, so that dropout shares
// no random numbers with initialisation or rounding.
std::uint64_t dropout_key(std::uint64_t seed);

// Returns an op that drops elements with this probability, in [0, 1): its threshold and its factor.
// The threshold is the probability rounded to a multiple of 2^-32.
Dropout dropout_of(double probability);

// Returns whether elements may be dropped: the adapter has dropout, and the batch has the list of
// samples.
bool has_dropout(const LayerSite& site);

// Adds the call that writes x into y with elements dropped, and returns y. The same call turns the
// gradient of the dropped input into the gradient of the input. y may be x.
TensorId drop(const LayerSite& site, const DropoutPlace& place, TensorId x, TensorId y);

}  // namespace terrace
