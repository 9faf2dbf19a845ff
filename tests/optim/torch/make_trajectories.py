"""Makes trajectories.txt: what torch.optim.AdamW and torch.optim.SGD compute in float64.

    ~/.cache/terrace/python/bin/python tests/optim/torch/make_trajectories.py

The environment is that of tools/python_env.sh; the first line of the file names the version of
torch. torch_test.cc says how far an update in float32 may be from these numbers. All that an update
takes (parameters, gradients, options) is a float32 number, so both start from the same.

A case begins with "case", the optimizer, the steps, the elements, the learning rate, the weight
decay and the optimizer's other numbers. A line "start" has the parameters, each line "step" the
gradients and then the parameters after it, and each line "slot" what the optimizer keeps at the end
under that name.
"""

import pathlib

import numpy as np
import torch

STEPS = 40
ELEMENTS = 6


def fp32(number):
    return float(np.float32(number))


def case(out, name, make, options, learning_rate, weight_decay):
    random = np.random.default_rng(7)
    start = random.uniform(-1, 1, ELEMENTS).astype(np.float32)
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = make([parameter], learning_rate, weight_decay)
    numbers = [learning_rate, weight_decay, *options]
    print("case", name, STEPS, ELEMENTS, *[repr(number) for number in numbers], file=out)
    print("start", *[repr(float(p)) for p in start], file=out)
    for _ in range(STEPS):
        # Gradients have a size in [1/2, 1], and more of them are positive: the bound of AdamW is
        # for such gradients.
        size = random.uniform(0.5, 1, ELEMENTS)
        gradient = np.where(random.uniform(size=ELEMENTS) < 0.25, -size, size).astype(np.float32)
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        values = [*gradient, *parameter.detach().numpy()]
        print("step", *[repr(float(value)) for value in values], file=out)
    for slot, values in optimizer.state[parameter].items():
        if slot != "step":
            print("slot", slot, *[repr(float(value)) for value in values], file=out)


def main():
    beta1, beta2, epsilon, momentum = fp32(0.9), fp32(0.95), fp32(1e-8), fp32(0.9)
    learning_rate = fp32(1e-2)

    def adamw(parameters, rate, decay):
        return torch.optim.AdamW(
            parameters, lr=rate, betas=(beta1, beta2), eps=epsilon, weight_decay=decay
        )

    def sgd(parameters, rate, decay):
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay)

    target = pathlib.Path(__file__).parent / "trajectories.txt"
    with open(target, "w", encoding="ascii") as out:
        print("torch", torch.__version__.split("+")[0], "numpy", np.__version__, file=out)
        for decay in (0.0, fp32(0.1)):
            case(out, "adamw", adamw, [beta1, beta2, epsilon], learning_rate, decay)
            case(out, "sgd", sgd, [momentum], learning_rate, decay)


main()
