#!/usr/bin/env bash
# Compares how fast two versions train: tools/compare_builds.sh [OPTIONS] COMMIT [-- FLAGS]
#
#   --pairs N    the number of pairs of runs (10)
#   --json       prints a JSON document instead of a table
#
# Builds COMMIT under build/commits/ and the working tree, in release, and runs trainings with both in
# turn: each pair has a run of either, and every second pair begins with the other version. A run of each
# comes before and does not count. Without FLAGS the trainings are two: gpt2-124m in memory, and four layers
# of llama-1b with its optimizer state on the drive, each about 20 s a run on two cores. FLAGS of terrace
# train are another training instead of them; they should say --max-steps. Where they name no --data, a text
# is made; no --run-dir is to be among them.
#
# Of each pair the ratio working tree / COMMIT is taken, of tokens a second (the median of all steps but
# the first), and of CPU seconds and wall seconds of the whole process. Printed are the median of the ratios,
# the least and the greatest, and whether all losses and norms are equal. TMPDIR names the drive.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pairs=10
json=
commit=
while (($#)); do
  case $1 in
    --pairs)
      (($# > 1)) || { echo "compare_builds.sh: --pairs wants a number" >&2; exit 2; }
      pairs=$2
      shift
      ;;
    --json) json=1 ;;
    -h | --help)
      sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --)
      shift
      break
      ;;
    -*)
      echo "compare_builds.sh: unknown option $1; see --help" >&2
      exit 2
      ;;
    *)
      [[ -z $commit ]] || { echo "compare_builds.sh: one commit is wanted, and -- before flags" >&2; exit 2; }
      commit=$1
      ;;
  esac
  shift
done
[[ -n $commit ]] || { echo "compare_builds.sh: name a commit; see --help" >&2; exit 2; }
[[ $pairs =~ ^[1-9][0-9]*$ ]] || { echo "compare_builds.sh: --pairs wants a number, not '$pairs'" >&2; exit 2; }

./tools/build.sh release terrace >&2
old=$(./tools/build_commit.sh "$commit" terrace)/terrace
new=$(realpath build/release/terrace)
commit=$(git rev-parse --short=12 "$commit^{commit}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seq 1 400000 >"$work/text.txt"
mkdir "$work/llama"
# llama-1b with 4 of its 16 layers and the vocabulary of bytes.
cat >"$work/llama/config.json" <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 4, "vocab_size": 256,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true}
END

# run NAME VERSION PROGRAM FLAG...: a training; adds a line to the list of runs.
run() {
  local name=$1 version=$2 program=$3 seconds
  shift 3
  rm -rf "$work/run" "$work/drive"
  mkdir "$work/drive"
  TIMEFORMAT='%R %U %S'
  seconds=$({ time "$program" train "$@" --run-dir "$work/run" >"$work/log.txt" 2>&1; } 2>&1) || {
    cat "$work/log.txt" >&2
    echo "compare_builds.sh: the training $name of $version failed" >&2
    exit 1
  }
  cp "$work/run/metrics.jsonl" "$work/metrics-$(wc -l <"$work/runs.txt").jsonl"
  echo "$name $version $seconds" >>"$work/runs.txt"
  echo "$name, $version: ${seconds%% *} s" >&2
}

# compare NAME FLAG...: the pairs, behind a run of each version that only warms the machine up.
compare() {
  local name=$1 pair
  shift
  run warm-up old "$old" "$@"
  run warm-up new "$new" "$@"
  for ((pair = 0; pair < pairs; ++pair)); do
    if ((pair % 2 == 0)); then
      run "$name" old "$old" "$@"
      run "$name" new "$new" "$@"
    else
      run "$name" new "$new" "$@"
      run "$name" old "$old" "$@"
    fi
  done
}

touch "$work/runs.txt"
data=(--data "$work/text.txt" --data-format text --validation-fraction 0)
if (($#)); then
  case " $* " in *" --data "*) data=() ;; esac
  compare given "${data[@]}" "$@"
else
  compare gpt2-124m --model gpt2-124m --init random "${data[@]}" --precision bf16 \
    --sequence-length 128 --micro-batch-size 2 --gradient-accumulation-steps 2 --max-steps 16
  compare llama-1b-4-layers --model "$work/llama" --init random "${data[@]}" --precision bf16 \
    --sequence-length 128 --micro-batch-size 2 --gradient-accumulation-steps 2 --max-steps 8 \
    --nvme "$work/drive" --place-optimizer nvme
fi

python3 - "$work" "$commit" "$json" <<'END'
import json, statistics, sys

work, commit, as_json = sys.argv[1:]
runs = {}
for number, line in enumerate(open(f"{work}/runs.txt")):
    name, version, wall, user, system = line.split()
    if name == "warm-up":
        continue
    rows = [json.loads(row) for row in open(f"{work}/metrics-{number}.jsonl")]
    later = rows[1:] or rows
    runs.setdefault(name, {"old": [], "new": []})[version].append({
        "tokens_per_s": statistics.median(row["tokens_per_s"] for row in later),
        "cpu_s": float(user) + float(system),
        "wall_s": float(wall),
        "curve": [(row["loss"], row["grad_norm"]) for row in rows]})

results = []
for name, by_version in runs.items():
    old, new = by_version["old"], by_version["new"]
    curves = [run["curve"] for run in old + new]
    result = {"name": name, "pairs": len(old), "equal_curves": all(c == curves[0] for c in curves)}
    for key in ("tokens_per_s", "cpu_s", "wall_s"):
        ratios = [b[key] / a[key] for a, b in zip(old, new)]
        result[key] = {"old": statistics.median(a[key] for a in old),
                       "new": statistics.median(b[key] for b in new),
                       "ratio": statistics.median(ratios), "least": min(ratios),
                       "greatest": max(ratios), "ratios": ratios}
    results.append(result)

if as_json:
    print(json.dumps({"schema": "terrace.compare_builds/1", "commit": commit, "results": results},
                     indent=1))
else:
    print(f"{'working tree / ' + commit:<28} {'commit':>10} {'tree':>10} {'ratio':>7} {'least':>7}"
          f" {'greatest':>8}")
    for result in results:
        equal = "equal" if result["equal_curves"] else "DIFFERENT"
        print(f"{result['name']}, {result['pairs']} pairs; losses and norms are {equal}")
        for key, label in (("tokens_per_s", "tokens/s"), ("cpu_s", "CPU s"), ("wall_s", "wall s")):
            row = result[key]
            print(f"  {label:<26} {row['old']:>10.2f} {row['new']:>10.2f} {row['ratio']:>7.3f}"
                  f" {row['least']:>7.3f} {row['greatest']:>8.3f}")
END
