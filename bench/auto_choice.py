#!/usr/bin/env python3
"""Compares what `terrace plan --auto` chooses on this machine with the best of a sweep by hand.

There are ten cases: six of one rank and four of two. The sweep trains some steps with every
combination of micro-batch and ranks that a user would try, and with the orders and recomputation
that apply. Then its fastest settings and those of --auto train five times each, in turn. The time
of a run is the median of its steps without the first; that of the settings is the median over the
runs.

    bench/auto_choice.py --terrace build/release/terrace --work DIR --out FILE

The program measures the machine first (`terrace profile`), with a drive in DIR. The result is one
JSON document (schema terrace.auto_choice/1), and lines on standard error. Exit code 1: in some case
the settings of --auto took more than 1.05 of the time of the fastest.
"""

import argparse
import itertools
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from plan_accuracy import MODELS

LIMIT = 1.05
SWEEP_STEPS = 3
STEPS = 4
REPEATS = 5

# Model, samples of a step, tokens of a sample, other flags, ranks.
CASES = [
    ("llama-64m", 4, 128, "--precision bf16", 1),
    ("qwen3-90m", 8, 64, "--precision bf16", 1),
    ("qwen3-90m", 2, 256, "--precision fp32", 1),
    ("gemma2-80m", 4, 128, "--precision bf16 --host-memory 500MiB --nvme {drive}", 1),
    ("gemma2-80m", 4, 128, "--precision bf16 --lora-rank 8", 1),
    ("llama-64m", 4, 128, "--precision fp32 --place-optimizer nvme --nvme {drive}", 1),
    ("llama-64m", 4, 128, "--precision bf16", 2),
    ("gemma2-80m", 4, 64, "--precision fp32", 2),
    ("qwen3-90m", 8, 64, "--precision bf16", 2),
    ("llama-64m", 8, 128, "--precision bf16", 2),
]
MESHES = {1: [""], 2: ["--zero-stage 0", "--zero-stage 1", "--zero-stage 3", "--tensor-parallel 2",
                       "--pipeline-parallel 2"]}


def settings_by_hand(samples, ranks):
    """Returns the flags of every combination that a user would try."""
    combinations = []
    sizes = [size for size in (1, 2, 4, 8) if samples % size == 0]
    for mesh, size in itertools.product(MESHES[ranks], sizes):
        of_rank = samples // ranks if "zero" in mesh else samples
        if of_rank % size != 0:
            continue
        steps = of_rank // size
        flags = f"--micro-batch-size {size} --gradient-accumulation-steps {steps} {mesh}"
        if ranks > 1:
            combinations.append(f"{flags} --local-ranks {ranks}")
            continue
        orders = ["layer-major", "micro-batch-major"] if steps > 1 else [""]
        for order, recompute in itertools.product(orders, ["none", "full"]):
            of_order = f" --micro-batch-order {order}" if order else ""
            combinations.append(f"{flags}{of_order} --recompute {recompute}")
    return combinations


class Trainer:
    """Runs the program in a directory."""

    def __init__(self, options):
        self.program = str(options.terrace.resolve())
        self.work = options.work.resolve()
        (self.work / "drive").mkdir(parents=True, exist_ok=True)
        (self.work / "text.txt").write_text("the river carries stones and leaves the sand behind. "
                                            * 20000)
        for name, config in MODELS.items():
            (self.work / name).mkdir(exist_ok=True)
            (self.work / name / "config.json").write_text(json.dumps(config))

    def run(self, words):
        return subprocess.run([self.program, *words], capture_output=True, text=True, check=False,
                              cwd=self.work)

    def case_flags(self, case):
        model, _, tokens, flags, _ = case
        name = model if model not in MODELS else str(self.work / model)
        return ["--model", name, "--sequence-length", str(tokens),
                *flags.replace("{drive}", str(self.work / "drive")).split()]

    def step_s(self, words, steps):
        """Trains. Returns the median time of a step; none where the step does not fit."""
        run_dir = self.work / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        done = self.run(["train", *words, "--data", str(self.work / "text.txt"), "--tokenizer",
                         "bytes", "--init", "random", "--max-steps", str(steps), "--eval-samples",
                         "1", "--checkpoint-every", "1000", "--run-dir", str(run_dir)])
        if done.returncode == 3:
            return None
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        rows = (run_dir / "metrics.jsonl").read_text().splitlines()
        return statistics.median(json.loads(row)["step_s"] for row in rows[1:])

    def choose(self, case, file):
        """Lets --auto choose. Returns the settings in words."""
        _, samples, _, _, ranks = case
        of_rank = samples // ranks
        words = ["plan", *self.case_flags(case), "--ranks-per-node", str(ranks),
                 "--micro-batch-size", "1", "--gradient-accumulation-steps", str(of_rank),
                 "--init", "random", "--auto", str(file), "--json"]
        file.unlink(missing_ok=True)
        done = self.run(words)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout)["results"][0]["flags"]["settings"]


def compare(trainer, number, case):
    model, samples, tokens, flags, ranks = case
    common = trainer.case_flags(case)
    swept = {}
    for by_hand in settings_by_hand(samples, ranks):
        seconds = trainer.step_s([*common, *by_hand.split()], SWEEP_STEPS)
        if seconds is not None:
            swept[by_hand] = seconds
    best = min(swept, key=swept.get)
    file = trainer.work / f"auto-{number}.toml"
    settings = trainer.choose(case, file)
    times = {"hand": [], "auto": []}
    for _ in range(REPEATS):
        times["hand"].append(trainer.step_s([*common, *best.split()], STEPS))
        times["auto"].append(trainer.step_s(["--config", str(file)], STEPS))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"case": f"{model}, {samples} x {tokens}, {flags}, {ranks} ranks", "swept": swept,
            "best_by_hand": best, "auto": settings, "hand_s": times["hand"],
            "auto_s": times["auto"], "ratio": medians["auto"] / medians["hand"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terrace", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a directory for runs")
    parser.add_argument("--out", type=pathlib.Path, help="the file for the result")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases, 1 to 10")
    options = parser.parse_args()
    trainer = Trainer(options)
    measured = trainer.run(["profile", "here.toml", "--nvme", str(trainer.work / "drive")])
    if measured.returncode != 0:
        sys.exit(measured.stderr)
    results = []
    for number, case in enumerate(CASES, 1):
        if options.only and number not in options.only:
            continue
        results.append(compare(trainer, number, case))
        row = results[-1]
        print(f"{number:2} ratio {row['ratio']:.3f}  {row['case']}\n     hand: "
              f"{row['best_by_hand']}\n     auto: {row['auto']}", file=sys.stderr, flush=True)
    worst = max(row["ratio"] for row in results)
    if options.out is not None:
        options.out.write_text(json.dumps(
            {"schema": "terrace.auto_choice/1", "date": time.strftime("%Y-%m-%d"),
             "worst_ratio": worst, "results": results}, indent=1) + "\n")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
