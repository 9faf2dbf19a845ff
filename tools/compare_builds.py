#!/usr/bin/env python3
"""Compares how fast the working tree and a commit run whole commands.

    tools/compare_builds.py COMMIT                        every command of the list
    tools/compare_builds.py COMMIT --only train_adapter plan
    tools/compare_builds.py COMMIT -- --model nano --init random --max-steps 50    one other training

Builds the commit under build/commits/ and the working tree, in release. Each command runs once with each build to warm
the machine up. Then both take turns, and every second round begins with the other build. Prints a table of medians and
of the ratios tree / commit of each round, so below 1 is faster; --json prints a document instead. It compares seconds
(of a step if the command trains, else of the whole command), processor seconds, minor page faults and how often a
thread waited. If a training's losses are not equal to the last digit, the table says so. The command terrace_torch
needs the environment of tools/python_env.sh, and is left out without it. TMPDIR names the drive.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPT2 = ["--model", "gpt2-124m", "--init", "random"]
# The widths of TinyLlama-1.1B, a model that many people tune first, with 6 of its 22 layers.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
         "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 6, "vocab_size": 32000,
         "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "tie_word_embeddings": False}
TORCH_STEPS = """
import time, torch, terrace.torch as tt
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(24)])
optimizer = tt.AdamW(model.parameters(), lr=1e-4, max_grad_norm=1.0)
for step in range(5):
    begin = time.perf_counter()
    model(torch.randn(64, 2048)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step > 0: print("step_s", time.perf_counter() - begin)
"""


def commands(work, extra):
    """Returns for each command's name the words behind the program's name."""
    if extra:
        return {"given": ["train", *given_data(work, extra), *extra]}
    text = ["--data", f"{work}/text.txt", "--data-format", "text", "--validation-fraction", "0"]
    llama = ["--model", f"{work}/llama", "--init", "random", "--sequence-length", "256"]
    drive = ["--nvme", f"{work}/drive", "--host-memory", "2GiB", "--device-memory", "1GiB", "--place-parameters", "nvme",
             "--place-optimizer", "nvme"]
    return {
        "train_in_memory": ["train", *GPT2, *text, "--sequence-length", "512", "--micro-batch-size", "4",
                            "--max-steps", "5"],
        "train_fp32": ["train", *GPT2, *text, "--sequence-length", "256", "--precision", "fp32", "--max-steps", "5"],
        "train_on_the_drive": ["train", *GPT2, *text, *drive, "--sequence-length", "256", "--micro-batch-size", "2",
                               "--gradient-accumulation-steps", "2", "--max-steps", "6"],
        "train_adapter": ["train", *llama, *text, "--lora-rank", "8", "--max-steps", "5"],
        "train_adapter_nf4": ["train", *llama, *text, "--lora-rank", "8", "--base-quantization", "nf4",
                              "--max-steps", "5"],
        "sample": ["sample", "--model", f"{work}/model", "--prompt", "The", "--max-new-tokens", "100",
                   "--temperature", "0"],
        "tokenize": ["tokenize", "--tokenizer", f"{work}/tokenizer.json", "--output", f"{work}/ids.bin",
                     f"{work}/long.txt"],
        "plan": ["train", "--dry-run", "--model", "llama-8b", "--init", "random", *text, "--max-steps", "1",
                 "--sequence-length", "2048", "--host-memory", "24GiB", "--nvme", f"{work}/drive"],
        "terrace_torch": None,
    }


def given_data(work, extra):
    return [] if "--data" in extra else ["--data", f"{work}/text.txt", "--data-format", "text"]


def byte_level_tokenizer():
    """Returns a tokenizer.json like GPT-2's, with the 256 bytes, and pairs of letters and digits as its merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    pairs = [(a, b) for a in "abcdefghijklmnopqrstuvwxyz0123456789\u0120" for b in "abcdefghijklmnopqrstuvwxyz0123456789"]
    words = letters + [a + b for a, b in pairs]
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": {w: i for i, w in enumerate(words)},
                      "merges": [f"{a} {b}" for a, b in pairs]}}


def make_inputs(work, program):
    sources = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "runtime").rglob("*.cc"))
    text = "".join(path.read_text(errors="ignore") for path in sources)
    (work / "text.txt").write_text(text)
    (work / "long.txt").write_text(text * max(1, 60_000_000 // len(text)))
    (work / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer()))
    (work / "drive").mkdir()
    (work / "llama").mkdir()
    (work / "llama/config.json").write_text(json.dumps(LLAMA))
    subprocess.run([program, "train", *GPT2, "--data", work / "text.txt", "--sequence-length", "64", "--max-steps", "1",
                    "--validation-fraction", "0", "--run-dir", work / "first"], check=True, capture_output=True)
    (work / "first/final").rename(work / "model")


def run(words, work, environment):
    """Runs a command once. Returns its seconds, counts, and losses if there are any."""
    log, run_dir = work / "log.txt", work / "run"
    subprocess.run(["rm", "-rf", run_dir, work / "ids.bin"], check=True)
    trains = words[1] == "train" and "--dry-run" not in words
    if trains:
        words = [*words, "--run-dir", run_dir]
    begin = time.perf_counter()
    with open(log, "w") as file:
        child = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment})
        _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"compare_builds.py: exit {child.returncode} of {' '.join(map(str, words))}\n{log.read_text()[-2000:]}")
    rows = [json.loads(line) for line in open(run_dir / "metrics.jsonl")] if trains else []
    steps = [row["step_s"] for row in rows[1:]]
    steps += [float(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("step_s ")]
    return {"seconds": statistics.median(steps) if steps else wall, "wall_s": wall,
            "cpu_s": usage.ru_utime + usage.ru_stime, "minor_faults": usage.ru_minflt, "waits": usage.ru_nvcsw,
            "losses": [row["loss"] for row in rows]}


def command_of(words, folder, python):
    """Returns the words of a command of the build in `folder`, and what its environment has in addition."""
    if words is not None:
        return [folder / "terrace", *words], {}
    return [python, "-c", TORCH_STEPS], {"PYTHONPATH": str(folder.parent.parent / "python"),
                                         "TERRACE_LIBRARY": str(folder / "runtime/capi/libterrace.so.1")}


def compare(name, both, work, rounds):
    runs = {build: [] for build in both}
    for number in range(rounds + 1):
        for build in sorted(both, reverse=number % 2 == 1):
            words, environment = both[build]
            measured = run(words, work, environment)
            if number > 0:
                runs[build].append(measured)
        print(f"{name}: round {number} of {rounds}", file=sys.stderr)
    result = {"name": name, "rounds": rounds, "equal_losses": len({str(r["losses"]) for b in runs.values() for r in b}) == 1}
    for key in ("seconds", "wall_s", "cpu_s", "minor_faults", "waits"):
        ratios = [b[key] / max(a[key], 1e-9) for a, b in zip(runs["commit"], runs["tree"])]
        result[key] = {"commit": statistics.median(a[key] for a in runs["commit"]),
                       "tree": statistics.median(b[key] for b in runs["tree"]),
                       "ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
    return result


def build(options, python):
    targets = ["terrace"] + (["terrace_c"] if python else [])
    subprocess.run([ROOT / "tools/build.sh", "release", *targets], check=True, stdout=sys.stderr)
    commit = subprocess.run([ROOT / "tools/build_commit.sh", options.commit, *targets], check=True, text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    return {"commit": pathlib.Path(commit), "tree": ROOT / "build/release"}


def print_table(results, commit):
    print(f"| working tree beside {commit} | seconds | tree | ratio (least to greatest) | processor | faults, commit and tree"
          " | waits, commit and tree |\n|---|---|---|---|---|---|---|")
    for one in results:
        seconds, faults, waits = one["seconds"], one["minor_faults"], one["waits"]
        note = "" if one["equal_losses"] else ", OTHER LOSSES"
        print(f"| {one['name']}{note} | {seconds['commit']:.3f} | {seconds['tree']:.3f} | {seconds['ratio']:.3f}"
              f" ({seconds['least']:.3f} to {seconds['greatest']:.3f}) | {one['cpu_s']['ratio']:.3f}"
              f" | {faults['commit']:,.0f}, {faults['tree']:,.0f} | {waits['commit']:,.0f}, {waits['tree']:,.0f} |")


def main():
    words = sys.argv[1:]
    extra = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    found = subprocess.run([ROOT / "tools/python_env.sh", "--check"], text=True, capture_output=True)
    python = pathlib.Path(found.stdout.strip()) / "bin/python" if found.returncode == 0 else None
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        listed = commands(work, extra)
        unknown = [name for name in options.only if name not in listed]
        if unknown or options.rounds < 1:
            parser.error(f"no such command: {', '.join(unknown)}; there are {', '.join(listed)}" if unknown
                         else "--rounds wants 1 or more")
        chosen = options.only or list(listed)
        if "terrace_torch" in chosen and python is None:
            print("compare_builds.py: terrace_torch is left out; tools/python_env.sh makes what it needs", file=sys.stderr)
            chosen.remove("terrace_torch")
        builds = build(options, python if "terrace_torch" in chosen else None)
        make_inputs(work, builds["tree"] / "terrace")
        results = []
        for name in chosen:
            both = {build: command_of(listed[name], folder, python) for build, folder in builds.items()}
            results.append(compare(name, both, work, options.rounds))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", options.commit], text=True,
                            capture_output=True).stdout.strip()
    if options.json:
        print(json.dumps({"schema": "terrace.compare_builds/2", "commit": commit, "results": results}, indent=1))
    else:
        print_table(results, commit)


if __name__ == "__main__":
    main()
