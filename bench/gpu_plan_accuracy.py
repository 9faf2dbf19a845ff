#!/usr/bin/env python3
"""Compares predicted steps on a GPU with measured ones.

    bench/gpu_plan_accuracy.py --terrace build/gpu/terrace --work DIR --out FILE [--seconds 120]

Each configuration has two predictions: the one that `terrace train` prints at its start, for which it
times its ops, and the one of `terrace plan` on a profile of this machine, which `terrace profile`
measures first. The measured time of a step is the median of the steps without the first three. DIR gets
a drive's files, and the runs unless --runs names another directory. No configuration is begun after --seconds. The result is one JSON document
(schema terrace.gpu_plan_accuracy/1) and a table on standard error. Exit code 1: a command failed.
"""

import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

STEPS = 9
WARM_UP = 3
LLAMA = "--model llama-1b --micro-batch-size 4 --sequence-length 2048"
GPT2 = "--model gpt2-124m --sequence-length 1024"
CONFIGURATIONS = {
    "gpt2_16x1024": f"{GPT2} --micro-batch-size 16",
    "gpt2_1x1024": f"{GPT2} --micro-batch-size 1",
    "llama_4x2048": LLAMA,
    "llama_4x2048_optimizer_on_host":
        f"{LLAMA} --gradient-accumulation-steps 4 --place-optimizer host",
    "llama_4x2048_on_host":
        f"{LLAMA} --gradient-accumulation-steps 4 --place-optimizer host --place-gradients host "
        "--place-parameters host",
    "llama_4x2048_recomputed": f"{LLAMA} --recompute full",
    "llama_8x2048_in_24_gib":
        "--model llama-1b --micro-batch-size 8 --sequence-length 2048 --device-memory 24GiB",
    "gpt2_16x1024_lora": f"{GPT2} --micro-batch-size 16 --lora-rank 16",
    "gpt2_16x1024_optimizer_on_drive":
        f"{GPT2} --micro-batch-size 16 --place-optimizer nvme --nvme {{drive}}",
    "gpt2_4x1024_fp32": f"{GPT2} --micro-batch-size 4 --precision fp32",
    "llama_4x2048_fp16": f"{LLAMA} --precision fp16",
}


def run(command, seconds):
    """Runs a command and returns what it printed. Raises RuntimeError if it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{' '.join(command[:2])} took more than {seconds} s") from late
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n"
                           f"{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def planned_step_s(options, arguments):
    """Returns the step time that `terrace plan` finds; None where it refuses to plan."""
    command = [str(options.terrace), "plan", *arguments, "--profile",
               str(options.work / "here.toml"), "--ranks-per-node", "1", "--json"]
    try:
        document = json.loads(run(command, 60))
    except RuntimeError as refused:
        print(refused, file=sys.stderr)
        return None
    return next(result["step_s"] for result in document["results"] if result["name"] == "step")


def trained(options, arguments):
    """Trains once. Returns the run's document and the rows of its metrics."""
    run_dir = options.runs / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    run([str(options.terrace), "train", *arguments, "--device", "cuda", "--data",
         str(options.work / "text.txt"), "--tokenizer", "bytes", "--init", "random", "--max-steps",
         str(STEPS), "--eval-samples", "1", "--checkpoint-every", "0", "--run-dir", str(run_dir)],
        90)
    document = json.loads((run_dir / "run.json").read_text())
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run_dir)
    return document, rows


def compare(name, options):
    arguments = CONFIGURATIONS[name].format(drive=options.work / "drive").split()
    document, rows = trained(options, arguments)
    measured = statistics.median(row["step_s"] for row in rows[WARM_UP:])
    planned = planned_step_s(options, arguments)
    predicted = document["measured"].get("predicted_step_s")
    return {
        "name": name, "arguments": " ".join(arguments), "measured_step_s": measured,
        "predicted_step_s": predicted, "planned_step_s": planned,
        "predicted_ratio": predicted / measured if predicted else None,
        "planned_ratio": planned / measured if planned else None,
        "joules_per_step": statistics.mean(row.get("joules") or 0 for row in rows[WARM_UP:]),
        "prediction": document.get("prediction"), "measured": document.get("measured")}


def prepare(options):
    (options.work / "drive").mkdir(parents=True, exist_ok=True)
    options.runs.mkdir(parents=True, exist_ok=True)
    words = random.Random(1)
    text = " ".join(words.choice(["river", "stone", "cloud", "ember", "field", "harbour"])
                    for _ in range(500000))
    (options.work / "text.txt").write_text(text)
    print(run([str(options.terrace), "profile", str(options.work / "here.toml"), "--device", "cuda",
               "--nvme", str(options.work / "drive")], 120), file=sys.stderr)


def shown(ratio):
    return f"{ratio:.2f}" if ratio else "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terrace", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a directory for the profile, the text and a drive's files")
    parser.add_argument("--runs", type=pathlib.Path, help="a directory for runs, which may be in memory (that of --work)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the file for the result")
    parser.add_argument("--only", default="", help="configurations whose name has this text")
    parser.add_argument("--seconds", type=float, default=600, help="seconds after which no further configuration is begun (600)")
    options = parser.parse_args()
    options.terrace = options.terrace.resolve()
    options.work = options.work.resolve()
    options.runs = (options.runs or options.work).resolve()
    begin = time.monotonic()
    prepare(options)
    rows = []
    failed = []
    for name in CONFIGURATIONS:
        if options.only not in name:
            continue
        if time.monotonic() - begin > options.seconds:
            failed.append(f"{name}: not begun")
            continue
        try:
            row = compare(name, options)
        except RuntimeError as failure:
            failed.append(name)
            print(failure, file=sys.stderr, flush=True)
            continue
        if row["planned_step_s"] is None:
            failed.append(f"{name}: not planned")
        rows.append(row)
        print(f"{name:34} {row['measured_step_s']:7.4f} s a step, predicted "
              f"{shown(row['predicted_ratio'])} of it, planned {shown(row['planned_ratio'])}",
              file=sys.stderr, flush=True)
    document = {"schema": "terrace.gpu_plan_accuracy/1", "date": time.strftime("%Y-%m-%d"),
                "profile": (options.work / "here.toml").read_text(), "failed": failed,
                "results": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
