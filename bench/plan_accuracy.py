#!/usr/bin/env python3
"""Compares what `terrace train` predicts with what it then takes, in thirty configurations.

The configurations are drawn from SEED, so that nobody chose them by their result. Each is trained
twice, as a user types it. The prediction is that of the first run: its step time, and the memory of
its process. The measured time of a step is the median of the run's steps without the first two. The
error of a time is |predicted / measured - 1|, less half of the relative difference of the two runs,
because no prediction can be better than that.

    bench/plan_accuracy.py --list
    bench/plan_accuracy.py --terrace build/release/terrace --work DIR --out FILE

DIR gets the runs and the drive's files, and should be on a real drive. A prediction knows a drive
only if an earlier run has measured it, which runs do that keep 1 GiB there or more. So such a run
comes first. The result is one
JSON document (schema terrace.plan_accuracy/1) and a table on standard error. Exit code 1: the median
or the worst error, or that of the memory, is above its limit.
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

SEED = 20261129
MEDIAN_LIMIT = 0.10
WORST_LIMIT = 0.20
MEMORY_LIMIT = 0.03
MEMORY_LIMIT_BYTES = 64 << 20
STEPS = 6

# Models besides the presets, small enough for steps of less than some seconds.
MODELS = {
    "llama-64m": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 640,
        "intermediate_size": 1728, "num_hidden_layers": 10, "num_attention_heads": 10,
        "num_key_value_heads": 10, "vocab_size": 12000, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False},
    "qwen3-90m": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512,
        "intermediate_size": 1536, "num_hidden_layers": 14, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 48000,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "tie_word_embeddings": True},
    "gemma2-80m": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 512,
        "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 128,
        "query_pre_attn_scalar": 64, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0},
}
BATCHES = [(1, 256), (2, 256), (1, 512), (4, 128), (2, 512)]
DRIVE = "--nvme {drive}"
# How many configurations of each kind, and what is drawn for it besides the model and the batch.
KINDS = [
    (6, "memory", [""]),
    (2, "recomputed", ["--recompute full"]),
    (2, "budget", ["--host-memory {budget} " + DRIVE]),
    (3, "optimizer_on_drive", ["--place-optimizer nvme " + DRIVE]),
    (3, "states_on_drive", [
        "--place-optimizer nvme --place-gradients nvme --place-parameters nvme " + DRIVE]),
    (2, "activations_on_drive", ["--place-activations nvme " + DRIVE]),
    (6, "two_threads", ["--zero-stage 1", "--zero-stage 3", "--tensor-parallel 2",
                        "--pipeline-parallel 2"]),
    (2, "two_processes", ["--zero-stage 2", "--tensor-parallel 2"]),
    (4, "adapter", ["--lora-rank 8", "--lora-rank 16 --base-quantization nf4"]),
]


def draw_one(numbers, kind, extra):
    """Returns a configuration: model, arguments of train, and how it is launched."""
    model = numbers.choice(["gpt2-124m", *MODELS])
    samples, length = numbers.choice(BATCHES)
    accumulation = numbers.choice([1, 1, 2, 3])
    if "pipeline" in extra:
        accumulation = 4
    arguments = [
        f"--micro-batch-size {samples} --sequence-length {length}",
        f"--gradient-accumulation-steps {accumulation}",
        f"--precision {numbers.choice(['bf16', 'bf16', 'fp32'])}"]
    order = numbers.choice(["auto", "layer-major", "micro-batch-major"])
    if accumulation > 1 and "pipeline" not in extra:
        arguments.append(f"--micro-batch-order {order}")
    if numbers.random() < 0.25:
        arguments.append("--max-grad-norm 0")
    if kind == "two_threads":
        arguments.append("--local-ranks 2")
    budget = numbers.choice(["500MiB", "700MiB", "900MiB"])
    arguments.append(extra.replace("{budget}", budget))
    return {"model": model, "arguments": " ".join(arguments).strip(),
            "mpi": kind == "two_processes"}


def draw(seed=SEED):
    """Returns the configurations, no two of which are equal."""
    numbers = random.Random(seed)
    drawn = []
    for count, kind, extras in KINDS:
        for index in range(count):
            one = draw_one(numbers, kind, extras[index % len(extras)])
            while any(one["arguments"] == other["arguments"] and one["model"] == other["model"]
                      for other in drawn):
                one = draw_one(numbers, kind, extras[index % len(extras)])
            one["name"] = f"{len(drawn) + 1:02d}_{kind}_{one['model']}"
            drawn.append(one)
    return drawn


def command_of(one, options, run_dir):
    model = one["model"] if one["model"] not in MODELS else str(options.work / one["model"])
    arguments = one["arguments"].replace("{drive}", str(options.work / "drive")).split()
    launcher = []
    if one["mpi"]:
        launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    return [*launcher, str(options.terrace), "train", "--model", model, "--data",
            str(options.work / "text.txt"), "--tokenizer", "bytes", "--init", "random", *arguments,
            "--max-steps", str(STEPS), "--eval-samples", "1", "--checkpoint-every", "1000",
            "--run-dir", str(run_dir)]


def train(one, options, repeat):
    """Trains once. Returns the run's document and the times of its steps; then removes the run."""
    run_dir = options.work / f"run-{one['name']}-{repeat}"
    shutil.rmtree(run_dir, ignore_errors=True)
    done = subprocess.run(command_of(one, options, run_dir), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{one['name']} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    document = json.loads((run_dir / "run.json").read_text())
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run_dir)
    return document, [row["step_s"] for row in rows], max(row["peak_rss_bytes"] for row in rows)


def compare(one, options):
    runs = [train(one, options, repeat) for repeat in (1, 2)]
    medians = [statistics.median(steps[2:]) for _, steps, _ in runs]
    measured = statistics.mean(medians)
    spread = abs(medians[0] - medians[1]) / measured
    document = runs[0][0]["measured"]
    predicted = document["predicted_step_s"]
    memory = document["planned_process_bytes"]
    peak = runs[0][2]
    return {
        "name": one["name"], "arguments": one["arguments"], "predicted_step_s": predicted,
        "measured_step_s": medians, "ratio": predicted / measured,
        "error": max(0.0, abs(predicted / measured - 1) - spread / 2),
        "predicted_limit": runs[0][0]["prediction"]["bottleneck"],
        "planned_process_bytes": memory, "peak_process_bytes": peak,
        "memory_error_bytes": memory - peak,
        "memory_holds": abs(memory - peak) <= max(MEMORY_LIMIT * peak, MEMORY_LIMIT_BYTES)}


def prepare(options):
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work / "drive").mkdir(exist_ok=True)
    words = random.Random(SEED)
    text = " ".join(words.choice(["river", "stone", "cloud", "ember", "field", "harbour"])
                    for _ in range(200000))
    (options.work / "text.txt").write_text(text)
    for name, config in MODELS.items():
        (options.work / name).mkdir(exist_ok=True)
        (options.work / name / "config.json").write_text(json.dumps(config))
    train({"name": "drive", "model": "gpt2-124m", "mpi": False,
           "arguments": f"--sequence-length 16 --place-optimizer nvme {DRIVE}"}, options, 0)


def summary(rows):
    errors = [row["error"] for row in rows]
    return {"configurations": len(rows), "median_error": statistics.median(errors),
            "worst_error": max(errors),
            "median_ratio": statistics.median(row["ratio"] for row in rows),
            "memory_holds": sum(row["memory_holds"] for row in rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the configurations and end")
    parser.add_argument("--terrace", type=pathlib.Path, help="the program")
    parser.add_argument("--work", type=pathlib.Path, help="a directory for runs and files")
    parser.add_argument("--out", type=pathlib.Path, help="the file for the result")
    parser.add_argument("--only", default="", help="configurations whose name has this text")
    options = parser.parse_args()
    drawn = [one for one in draw() if options.only in one["name"]]
    if options.list:
        for one in drawn:
            print(one["name"], one["arguments"])
        return 0
    if options.terrace is None or options.work is None:
        parser.error("--terrace and --work are needed")
    if not drawn:
        parser.error(f"no configuration has {options.only} in its name")
    options.terrace = options.terrace.resolve()
    options.work = options.work.resolve()
    prepare(options)
    rows = []
    failed = []
    for one in drawn:
        try:
            row = compare(one, options)
        except RuntimeError as failure:
            failed.append(one["name"])
            print(failure, file=sys.stderr, flush=True)
            continue
        rows.append(row)
        print(f"{row['name']:44} {row['predicted_step_s']:7.3f} s predicted, "
              f"{row['measured_step_s'][0]:7.3f} and {row['measured_step_s'][1]:7.3f} measured, "
              f"ratio {row['ratio']:.2f}, error {100 * row['error']:5.1f} %, memory "
              f"{row['memory_error_bytes'] / 2**20:+.0f} MiB of "
              f"{row['peak_process_bytes'] / 2**20:.0f}", file=sys.stderr, flush=True)
    if not rows:
        return 1
    total = summary(rows)
    total["failed"] = failed
    print(json.dumps(total), file=sys.stderr)
    result = {"schema": "terrace.plan_accuracy/1", "seed": SEED,
              "date": time.strftime("%Y-%m-%d"), "summary": total, "results": rows}
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    holds = (not failed and total["median_error"] <= MEDIAN_LIMIT
             and total["worst_error"] <= WORST_LIMIT and total["memory_holds"] == len(rows))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
