#!/usr/bin/env python3
"""Measures what ZeRO's stages need and send, beside the formulas, and prints a table or JSON.

For a model, numbers of ranks, launchers, stages and gradient types it runs `terrace train` for a
few steps with the least --host-memory that it fits in (so nothing is kept that need not be). It
compares

* memory: the program's ledger at its peak, and the resident memory of a rank (VmHWM, less the VmHWM
  of a run of the preset nano), with the formula of parameters, gradients and optimizer state, plus
  the parts that are stated beside it: a tied embedding's whole gradient, units that are gathered or
  not yet reduced, activations and workspace;
* bytes on the wire: the bytes that the ranks counted, with the formula times (N-1)/N.

With two bytes of parameter, g of gradient and S of state (split masters: 10) a parameter needs
2+g+S (stage 0), 2+g+S/N (1), 2+(g+S)/N (2), (2+g+S)/N (3), and sends 2g (0), g+2 (1, 2), g+4 (3).
Not part of the build; needs only the program, and mpirun for that launcher.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ACCOUNTS = ["parameters", "gradients", "optimizer_state", "activations", "staging", "workspace"]
STATE_BYTES = 10


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/terrace")
    parser.add_argument("--model", default="gpt2-124m")
    parser.add_argument("--data", default="README.md", help="a text file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--launchers", nargs="+", choices=["threads", "mpirun"],
                        default=["threads", "mpirun"])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--gradients", nargs="+", choices=["fp32", "bf16"],
                        default=["fp32", "bf16"])
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def size_of(text, unit):
    return float(text) * UNITS[unit]


def launched(launcher, ranks, command):
    if launcher == "threads":
        return command + ["--local-ranks", str(ranks)]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
            "mpi_yield_when_idle", "1", "-n", str(ranks)] + command


def descendants(pid):
    found = [pid]
    for process in found:
        try:
            text = Path(f"/proc/{process}/task/{process}/children").read_text()
        except OSError:
            continue
        found.extend(int(child) for child in text.split())
    return found


def resident_peaks(pid, program, peaks):
    """Notes the highest VmHWM of each process of the program below pid."""
    for process in descendants(pid):
        try:
            if Path(f"/proc/{process}/exe").resolve() != program:
                continue
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        if peak:
            peaks[process] = max(peaks.get(process, 0), int(peak.group(1)) * 1024)


def run(command, program):
    """Returns the exit code, the output and, by process of the program, its resident peak."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peaks = {}
        while process.poll() is None:
            resident_peaks(process.pid, program, peaks)
            time.sleep(0.02)
        output.seek(0)
        return process.returncode, output.read(), peaks


def train_command(arguments, model, directory, more):
    return [arguments.program, "train", "--model", model, "--data", arguments.data,
            "--data-format", "text", "--sequence-length", str(arguments.sequence_length),
            "--max-steps", str(arguments.steps), "--validation-fraction", "0", "--threads", "1",
            "--recompute", "none", "--progress", "off", "--run-dir", directory] + more


def least_memory(text):
    found = re.search(r"raise --host-memory to ([\d.]+) (\w+) or more", text)
    if not found:
        sys.exit(f"the least memory is not told:\n{text}")
    return found.group(1) + found.group(2)


def ledger_of(text):
    """Returns the sizes on the host by the table's titles. Rows of noughts are not printed."""
    ledger = dict.fromkeys(["budget", "peak"] + ACCOUNTS, 0.0)
    header = re.search(r"^ +(.*\bhost\b.*)\nbudget ", text, re.M)
    tiers = header.group(1).split()
    for title in ledger:
        row = re.search(rf"^ *{title} (.*)$", text[header.start():], re.M)
        cells = re.findall(r"([\d.]+) ([KMG]?i?B)|(?<=\s)(-|none)(?=\s|$)", row.group(1)) if row else []
        if cells and cells[tiers.index("host")][0]:
            ledger[title] = size_of(*cells[tiers.index("host")][:2])
    return ledger


def per_parameter(stage, ranks, gradient):
    divided = [stage >= 3, stage >= 2, stage >= 1]
    return sum(size / (ranks if part else 1)
               for size, part in zip([2, gradient, STATE_BYTES], divided))


def sent_per_parameter(stage, ranks, gradient):
    whole = {0: 2 * gradient, 1: gradient + 2, 2: gradient + 2, 3: gradient + 4}[stage]
    return whole * (ranks - 1) / ranks


def measure(arguments, case, baseline):
    launcher, ranks, stage, gradient = (case[k] for k in ("launcher", "ranks", "stage", "gradient"))
    program = Path(arguments.program).resolve()
    more = ["--zero-stage", str(stage), "--gradient-dtype", gradient, "--host-memory"]
    with tempfile.TemporaryDirectory() as directory:
        command = train_command(arguments, arguments.model, directory + "/run", more)
        _, text, _ = run(launched("threads", ranks, command + ["1MiB", "--dry-run"]), program)
        memory = least_memory(text)
        code, text, peaks = run(launched(launcher, ranks, command + [memory]), program)
        if code != 0:
            sys.exit(f"exit code {code}:\n{text}")
        rows = [json.loads(line) for line in open(directory + "/run/metrics.jsonl")]
    parameters = int(re.search(r": (\d+) parameters in", text).group(1))
    gradient_bytes = 4 if gradient == "fp32" else 2
    ledger = ledger_of(text)
    states = sum(ledger[account] for account in ACCOUNTS[:3]) / parameters
    resident = sum(peaks.values()) / ranks - baseline[launcher, ranks]
    sent = rows[1]["collective_bytes"] / ranks / parameters
    return dict(
        case, parameters=parameters,
        formula=round(per_parameter(stage, ranks, gradient_bytes), 3),
        ledger_states=round(states, 3),
        stated_beside=round(states - per_parameter(stage, ranks, gradient_bytes), 3),
        ledger_peak_bytes=int(rows[1]["host_peak_bytes"]), resident_bytes=int(resident),
        resident_of_ledger=round(resident / rows[1]["host_peak_bytes"], 3),
        sent_formula=round(sent_per_parameter(stage, ranks, gradient_bytes), 3),
        sent=round(sent, 3))


def resident_of_nano(arguments, launcher, ranks):
    program = Path(arguments.program).resolve()
    with tempfile.TemporaryDirectory() as directory:
        command = train_command(arguments, "nano", directory + "/run", ["--host-memory", "64MiB"])
        code, text, peaks = run(launched(launcher, ranks, command), program)
    if code != 0:
        sys.exit(f"exit code {code}:\n{text}")
    return sum(peaks.values()) / ranks


def host():
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {"cpu": cpu.group(1) if cpu else platform.processor(), "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": f"{platform.system()} {platform.release()}"}


def main():
    arguments = parse_arguments()
    baseline = {(launcher, ranks): resident_of_nano(arguments, launcher, ranks)
                for launcher in arguments.launchers for ranks in arguments.ranks}
    results = []
    for launcher in arguments.launchers:
        for ranks in arguments.ranks:
            for gradient in arguments.gradients:
                for stage in arguments.stages:
                    case = dict(launcher=launcher, ranks=ranks, gradient=gradient, stage=stage)
                    results.append(measure(arguments, case, baseline))
                    if arguments.json:
                        continue
                    if len(results) == 1:
                        print("  ".join(results[0]))
                    print("  ".join(str(results[-1][key]).rjust(len(key)) for key in results[-1]),
                          flush=True)
    if arguments.json:
        print(json.dumps({
            "schema": "terrace.zero_ranks/1", "host": host(),
            "model": arguments.model, "sequence_length": arguments.sequence_length,
            "resident_of_nano": {f"{launcher}_{ranks}": int(bytes_)
                                 for (launcher, ranks), bytes_ in baseline.items()},
            "results": results}, indent=1))


if __name__ == "__main__":
    main()
