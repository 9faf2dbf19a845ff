#!/usr/bin/env python3
"""Trains a model with experts with `terrace train` and with transformers in turn, and compares them.

    bench/experts_beside_transformers.py --terrace build/release/terrace --work DIR --text FILE \\
        --python PYTHON [--preload LIBJEMALLOC] [--rounds N] [--out FILE]

The model is that of peers/transformers_experts.py: Qwen3 with experts, about 200 M parameters, 4 x
512 tokens a step, bf16. In each round every program trains some steps: ours with everything in
memory, ours with everything on the drive, and transformers with each of its two ways to compute
experts. Rounds alternate the order. PYTHON has torch and transformers. --preload is an allocator for
them. --deepspeed adds DeepSpeed's ZeRO stage 3 on the CPU, which PYTHON must then have, too. DIR gets the runs and the drive's files, and should be on a real drive. The result is one JSON
document (schema terrace.experts_beside_transformers/1): medians of seconds and the most resident
memory of each, and the ratios to the faster way of transformers.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

PEER = pathlib.Path(__file__).parent / "peers" / "transformers_experts.py"
BATCH = ["--sequence-length", "512", "--micro-batch-size", "4"]
ON_DRIVE = ["--place-parameters", "nvme", "--place-gradients", "nvme", "--place-optimizer", "nvme"]
STEPS = 4


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terrace", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a directory for runs")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="a text file; bytes are tokens")
    parser.add_argument("--python", default=sys.executable, help="Python with torch and transformers")
    parser.add_argument("--deepspeed", action="store_true", help="also train with DeepSpeed")
    parser.add_argument("--preload", help="an allocator's library for transformers")
    parser.add_argument("--drive-memory", default="700MiB", help="--host-memory of the run on the drive")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, help="the file for the result")
    return parser.parse_args()


def run(words, environment=None):
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def train_ours(options, flags):
    run_dir = options.work / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    run([options.terrace, "train", "--model", options.work / "model", "--init", "random", *BATCH, *flags, "--data",
         options.text, "--tokenizer", "bytes", "--validation-fraction", "0", "--max-steps", str(STEPS),
         "--checkpoint-every", "1000", "--run-dir", run_dir])
    rows = [json.loads(row) for row in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {"step_s": [row["step_s"] for row in rows[1:]], "peak_bytes": max(row["peak_rss_bytes"] for row in rows)}


def train_peer(options, script, *flags):
    environment = dict(os.environ)
    if options.preload:
        environment["LD_PRELOAD"] = options.preload
    words = [options.python, script, *flags, "--data", options.text, "--warmup", "1", "--steps", str(STEPS - 1)]
    return json.loads(run(words, environment).splitlines()[-1])


def main():
    options = parse_arguments()
    options.work = options.work.resolve()
    (options.work / "drive").mkdir(parents=True, exist_ok=True)
    run([options.python, PEER, "--write-config", options.work / "model"])
    drive = ["--nvme", options.work / "drive", "--host-memory", options.drive_memory, *ON_DRIVE]
    programs = {"memory": lambda: train_ours(options, []), "drive": lambda: train_ours(options, drive),
                "eager": lambda: train_peer(options, PEER, "--experts", "eager"),
                "grouped_mm": lambda: train_peer(options, PEER, "--experts", "grouped_mm")}
    if options.deepspeed:
        programs["deepspeed"] = lambda: train_peer(options, PEER.with_name("deepspeed_experts.py"))
    seen = {name: [] for name in programs}
    for number in range(options.rounds):
        for name in list(programs)[:: -1 if number % 2 else 1]:
            seen[name].append(programs[name]())
            print(f"round {number + 1}: {name} {statistics.median(seen[name][-1]['step_s']):.3f} s a step",
                  file=sys.stderr, flush=True)
    medians = {name: statistics.median(statistics.median(one["step_s"]) for one in ones) for name, ones in seen.items()}
    peaks = {name: max(one["peak_bytes"] for one in ones) for name, ones in seen.items()}
    best = min(("eager", "grouped_mm"), key=medians.get)
    result = {"schema": "terrace.experts_beside_transformers/1", "date": time.strftime("%Y-%m-%d"),
              "median_step_s": medians, "peak_bytes": peaks, "faster_peer": best,
              "speed_ratio": {name: medians[best] / medians[name] for name in ("memory", "drive")},
              "memory_ratio": {name: peaks[name] / peaks[best] for name in ("memory", "drive")}, "rounds": seen}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
