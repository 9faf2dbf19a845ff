#!/usr/bin/env python3
"""Compares plans on shipped machines with training speeds that others have published.

published_rows.json has the rows: a paper or a page, its model, ranks and batch, and the time of a
step, or the share of the peak, that it reports. Each row is planned as a user would plan it. What a
row does not say is filled in: a micro-batch of one sample, and no interleaving.

Two rows, marked `calibrates`, set the share of the peak that products reach on their machine in
place of the shipped one, and count as neither hit nor miss. The others are a hit if the prediction
is within 15 %.

The programs of some rows keep attention's scores in memory (`keeps_scores`). Terrace does not, so
its plan has no time for them. The script adds it: the bytes that such a program moves, at the
memory's rate, and the products of the masked half. The programs of some rows add gradients over
data-parallel ranks behind the whole backward (`sums_gradients_last`: function train_step of
Megatron-LM's megatron/training.py, releases 2.0 to 3.0). Terrace adds them under the backward, so
the script adds half of the time that the plan has for its sums: they are in fp32, those programs' in
fp16. The table has the ratio of the plan alone, too.

V100 has no bf16, so its rows are planned in fp16, and the others in bf16.

    bench/published_rows.py --terrace build/release/terrace --work DIR --out FILE

Exit code 1: fewer than three quarters of the rows are hits.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

LIMIT = 0.15
SHARE_OF_HITS = 0.75
DEVICES = {"dgx-a100": 8, "dgx-h100": 8, "dgx-2": 16, "rtx-4090": 1}
PRECISIONS = {"dgx-2": "fp16"}  # others have bf16
PLACES = {
    "none": [],
    "parameters and optimizer states on NVMe": [
        "--place-parameters", "nvme", "--place-optimizer", "nvme"],
    "parameters on NVMe, optimizer states on NVMe": [
        "--place-parameters", "nvme", "--place-optimizer", "nvme"],
    "parameters on CPU, optimizer states on NVMe": [
        "--place-parameters", "host", "--place-optimizer", "nvme"],
}
SECONDS_MOST = 600  # of one plan


def config_of(row):
    """Returns the config.json of the row's model."""
    heads = row["heads"] or row["width"] // 128
    if row["gated"]:
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": row["width"], "intermediate_size": row["intermediate"],
            "num_hidden_layers": row["layers"], "num_attention_heads": heads,
            "num_key_value_heads": row["key_value_heads"], "vocab_size": row["vocabulary"],
            "max_position_embeddings": row["sequence"], "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": row["tied"]}
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": row["width"],
        "n_layer": row["layers"], "n_head": heads, "n_inner": row["intermediate"],
        "vocab_size": row["vocabulary"] or 51200, "n_positions": row["sequence"],
        "n_ctx": row["sequence"], "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "tie_word_embeddings": True}


def command_of(row, options, profile):
    directory = options.work / row["row"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(row)))
    micro_batch = row["micro_batch"] or 1
    accumulation = max(1, row["global_batch"] // (row["data"] * micro_batch))
    devices = min(DEVICES[row["machine"]], row["gpus"])
    words = [
        str(options.terrace), "plan", "--model", str(directory), "--init", "random", "--json",
        "--profile", str(profile), "--nodes", str(max(1, row["gpus"] // devices)),
        "--ranks-per-node", str(devices), "--tensor-parallel", str(row["tensor"]),
        "--pipeline-parallel", str(row["pipeline"]), "--micro-batch-size", str(micro_batch),
        "--gradient-accumulation-steps", str(accumulation), "--sequence-length",
        str(row["sequence"]), "--precision", precision_of(row)]
    if row["data"] > 1:
        words += ["--zero-stage", str(row["zero_stage"] or 0)]
    if row["chunks"] > 1:
        words += ["--pipeline-schedule", "interleaved", "--virtual-stages", str(row["chunks"])]
    if row["recompute"] in ("full", "none"):
        words += ["--recompute", row["recompute"]]
    places = PLACES[row["placement"]]
    if places:
        words += [*places, "--nvme", str(options.work)]
    return words


def precision_of(row):
    return PRECISIONS.get(row["machine"], "bf16")


def figure(text, key):
    return float(re.search(rf"^{key} = (?:{{ value = )?([0-9.eE+-]+)", text, re.M).group(1))


def with_figure(text, key, value):
    line = f"{key} = {value}"
    return re.sub(rf"^{key} = .*$", line, text, flags=re.M)


class Profiles:
    """The machines of the rows, as files, with the share of products that calibrates them."""

    def __init__(self, options):
        self.options = options
        self.texts = {}

    def text(self, machine):
        if machine not in self.texts:
            self.texts[machine] = subprocess.run(
                [self.options.terrace, "profile", machine], check=True, capture_output=True,
                text=True).stdout
        return self.texts[machine]

    def file(self, machine):
        path = self.options.work / f"{machine}.toml"
        path.write_text(self.text(machine))
        return path

    def set_share(self, machine, share):
        self.texts[machine] = with_figure(self.text(machine), "product_share", share)


def seconds_of_scores(row, text):
    """Returns what attention's scores cost a step of a program that keeps them in memory."""
    heads = (row["heads"] or row["width"] // 128) / row["tensor"]
    samples = row["global_batch"] / row["data"]
    layers = row["layers"] / row["pipeline"]
    scores = heads * row["sequence"] ** 2 * samples * layers
    # Bytes of a score: written, read and written by the softmax and by dropout with its mask, read
    # by the second product; in the backward the gradients of these.
    forwards = 2 if row["recompute"] != "none" else 1
    moved = scores * (13 * forwards + 19)
    width = row["width"] / (row["heads"] or row["width"] // 128)
    masked = scores / 2 * 4 * width * (forwards + 2)
    memory = figure(text, "device_memory_bytes_per_s") * 0.85
    products = figure(text, f"{precision_of(row)}_flops_per_s") * figure(text, "product_share")
    return moved / memory + masked / products


def seconds_of_last_sums(step_s, results):
    """Returns what a step takes longer if fp16 gradients are added behind the backward."""
    links = next(r for r in results if r["name"] == "links")
    return step_s * links["collective"]["busy_share"] / 2


def plan(row, options, profiles):
    """Returns the ratios of predicted and published, of the plan alone and with what the row's
    program does besides; or why there is no plan."""
    if row["gpus"] != row["tensor"] * row["pipeline"] * row["data"]:
        return {"refused": "the ranks have an axis that plans do not have"}
    words = command_of(row, options, profiles.file(row["machine"]))
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MOST,
                              check=False)
    except subprocess.TimeoutExpired:
        return {"refused": f"the plan takes more than {SECONDS_MOST} s"}
    if done.returncode != 0:
        return {"refused": done.stderr.strip().splitlines()[-1][:200]}
    results = json.loads(done.stdout)["results"]
    step = next(r for r in results if r["name"] == "step")
    predicted = step["step_s"]
    text = profiles.text(row["machine"])
    if "step_s" in row:
        published = row["step_s"]
    else:
        peak = figure(text, f"{precision_of(row)}_flops_per_s")
        share = row["mfu"] if "mfu" in row else row["tflops_per_gpu"] * 1e12 / peak
        # A published rate counts a recomputed forward as work.
        work = 4 / 3 if "mfu" not in row and row["recompute"] == "full" else 1
        published = predicted * step["mfu"] * work / share
    besides = seconds_of_scores(row, text) if row.get("keeps_scores") else 0
    if row.get("sums_gradients_last"):
        besides += seconds_of_last_sums(predicted, results)
    return {"predicted_s": predicted, "published_s": published,
            "ratio_of_plan": predicted / published, "ratio": (predicted + besides) / published,
            "limited_by": step["bottleneck"]}


def calibrate(row, options, profiles):
    """Sets the share of products with which the row is predicted as published."""
    share = figure(profiles.text(row["machine"]), "product_share")
    for _ in range(6):
        found = plan(row, options, profiles)
        if "refused" in found:
            sys.exit(f"{row['row']}: {found['refused']}")
        if abs(found["ratio"] - 1) < 0.002:
            return share
        share = min(0.999, share * found["ratio"])
        profiles.set_share(row["machine"], share)
    sys.exit(f"{row['row']}: no share of the peak predicts this row")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terrace", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a directory for files")
    parser.add_argument("--out", type=pathlib.Path, help="the file for the result")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    options = parser.parse_args()
    options.terrace = options.terrace.resolve()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = json.loads((pathlib.Path(__file__).parent / "published_rows.json").read_text())
    profiles = Profiles(options)
    shares = {}
    for row in rows:
        if row.get("calibrates"):
            shares[row["machine"]] = calibrate(row, options, profiles)
    results = []
    for row in rows:
        if row.get("calibrates") or options.only not in row["row"]:
            continue
        found = {"row": row["row"], "source": row["source"], **plan(row, options, profiles)}
        found["hit"] = "ratio" in found and abs(found["ratio"] - 1) <= LIMIT
        results.append(found)
        said = found.get("refused") or (f"{found['ratio_of_plan']:.2f} by the plan, "
                                        f"{found['ratio']:.2f} with the rest, "
                                        f"{found['limited_by']}")
        print(f"{row['row']:38} {'hit ' if found['hit'] else 'miss'} {said}", file=sys.stderr,
              flush=True)
    planned = [found for found in results if "ratio" in found]
    hits = sum(found["hit"] for found in planned)
    total = {"rows": len(results), "planned": len(planned), "hits": hits, "product_share": shares}
    print(json.dumps(total), file=sys.stderr)
    if options.out is not None:
        options.out.write_text(json.dumps(
            {"schema": "terrace.published_rows/1", "date": time.strftime("%Y-%m-%d"),
             "summary": total, "results": results}, indent=1) + "\n")
    return 0 if planned and hits >= SHARE_OF_HITS * len(planned) else 1


if __name__ == "__main__":
    sys.exit(main())
