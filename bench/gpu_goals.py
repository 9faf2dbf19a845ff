#!/usr/bin/env python3
"""Compares the results that tools/gpu_bench.sh kept in a folder with their goals, and prints a line for each.

It prints the ratios of `terrace bench` that have a goal, and the results that both Terrace and a peer have
measured under one name. A missed goal is no error: the table is there to show it.
"""

import json
import sys
from pathlib import Path


def results_of(folder, name):
    """Returns the results, by name, of NAME.json and of NAME-1.json and so on, the files of a long part's own parts."""
    numbered = {}
    for path in folder.glob(f"{name}-*.json"):
        number = path.stem[len(name) + 1 :]
        if number.isdecimal():
            numbered[int(number)] = path
    paths = [folder / f"{name}.json", *(numbered[number] for number in sorted(numbered))]
    return {
        result["name"]: result
        for path in paths
        if path.exists()
        for result in json.loads(path.read_text())["results"]
    }


def goal_lines(results):
    for name, result in results.items():
        if "goal" in result:
            verdict = "reached" if result["ratio"] >= result["goal"] else "missed"
            yield f"{name:<48} ratio {result['ratio']:6.3f}  goal {result['goal']:5.2f}  {verdict}"


def peer_lines(ours, peers):
    for name, peer in peers.items():
        if name in ours:
            mine = ours[name]
            ratio = mine["value"] / peer["value"]
            yield (
                f"{name:<48} {mine['value']:12.1f}  peer {peer['value']:12.1f} {mine['unit']}"
                f"  ratio {ratio:6.3f}"
            )


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: gpu_goals.py FOLDER")
    folder = Path(sys.argv[1])
    kernel = results_of(folder, "kernel")
    lines = [
        *goal_lines(results_of(folder, "copy")),
        *goal_lines(kernel),
        *peer_lines(kernel, results_of(folder, "attention")),
        *peer_lines(results_of(folder, "step-1b"), results_of(folder, "fsdp2-1b")),
        *peer_lines(results_of(folder, "step-7b"), results_of(folder, "fsdp2-7b")),
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
