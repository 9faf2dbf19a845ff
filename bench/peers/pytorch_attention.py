#!/usr/bin/env python3
"""Measures PyTorch's attention through cuDNN on a GPU and prints JSON.

The peer of the attention results of `terrace bench kernel --device cuda`: the same case names,
shapes, type, mask and count of operations (the half of each square that is not masked: 2 products
forward, 5 backward). Not part of the build; needs only PyTorch with CUDA. --backend takes
FlashAttention, or what PyTorch itself chooses, instead.
"""

import argparse
import json
import platform
import statistics
import sys

# Name, sequences, positions, query heads, key-value heads, head width: the scenes of
# bench/device_kernel_bench.cc.
CASES = [
    ("gpt2_124m_bf16", 32, 1024, 12, 12, 64),
    ("llama_1b_bf16", 16, 2048, 32, 8, 64),
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["cudnn", "flash", "any"], default="cudnn")
    parser.add_argument(
        "--deterministic", action="store_true", help="backward passes whose bits repeat, as ours"
    )
    parser.add_argument("--device", type=int, default=0, help="the GPU's number")
    parser.add_argument("--rounds", type=int, default=7, help="figures are their medians")
    parser.add_argument("--calls", type=int, default=20, help="of a round")
    return parser.parse_args()


def seconds_of(torch, calls, call):
    """Returns the seconds of one call, by the GPU's clock."""
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / calls


def measure(torch, options, case):
    name, sequences, positions, heads, key_value_heads, width = case
    attention = torch.nn.functional.scaled_dot_product_attention

    def operand(count):
        shape = (sequences, count, positions, width)
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)

    q, k, v = operand(heads), operand(key_value_heads), operand(key_value_heads)
    grouped = heads != key_value_heads

    def forward():
        return attention(q, k, v, is_causal=True, enable_gqa=grouped)

    try:
        out = forward()
    except RuntimeError:
        if not grouped:
            raise
        # This backend wants a key and a value for every head: the same number of products, more
        # bytes.
        grouped = False
        k, v = operand(heads), operand(heads)
        out = forward()
    dout = torch.randn_like(out)

    def backward():
        torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    def forward_alone():
        with torch.no_grad():
            forward()

    product = sequences * heads * positions * positions * width  # of half a square
    results = []
    for kind, call, products in (("forward", forward_alone, 2), ("backward", backward, 5)):
        seconds_of(torch, options.calls, call)
        rates = [
            products * product * 1e-12 / seconds_of(torch, options.calls, call)
            for _ in range(options.rounds)
        ]
        results.append(
            {
                "name": f"{name}_attention_{kind}",
                "value": statistics.median(rates),
                "unit": "TFLOP/s",
                "value_range": [min(rates), max(rates)],
                "repetitions": options.rounds,
                "key_value_heads": k.shape[1],
            }
        )
    return results


def main():
    options = parse_arguments()
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not torch.cuda.is_available():
        sys.exit("pytorch_attention: this PyTorch sees no GPU")
    torch.cuda.set_device(options.device)
    torch.manual_seed(1234)
    torch.use_deterministic_algorithms(options.deterministic)
    backends = {
        "cudnn": [SDPBackend.CUDNN_ATTENTION],
        "flash": [SDPBackend.FLASH_ATTENTION],
        "any": list(SDPBackend.__members__.values()),
    }[options.backend]
    backends = [backend for backend in backends if backend != SDPBackend.ERROR]
    results = []
    with sdpa_kernel(backends):
        for case in CASES:
            results += measure(torch, options, case)
    print(
        json.dumps(
            {
                "peer": "pytorch attention",
                "backend": options.backend,
                "deterministic": options.deterministic,
                "torch": torch.__version__,
                "cudnn": torch.backends.cudnn.version(),
                "python": platform.python_version(),
                "device": torch.cuda.get_device_name(),
                "results": results,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
