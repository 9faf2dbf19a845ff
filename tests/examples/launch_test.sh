#!/usr/bin/env bash
# Runs the files of examples/launch as far as one machine can: launch_test.sh SOURCE TERRACE [mpi]
#
# With `mpi`, also the files for MPI, with which the program was then built.
#
# `srun` and `scontrol` are stand-ins. The first starts two tasks with the variables that Slurm sets, or mpirun in place
# of PMIx. The command of the MPIJob is run by mpirun on this host; that part needs Python's yaml, and says if it is
# missing.
set -euo pipefail
launch=$1/examples/launch
terrace=$2
has_mpi=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
  printf 'launch_test.sh: %s\n' "$*" >&2
  exit 1
}

seq 1 3000 >text.txt
"$terrace" train --model nano --init random --data text.txt --sequence-length 64 --max-steps 2 \
  --device cpu --run-dir base >/dev/null
mkdir -p bin
mpirun=(mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)

cat >bin/srun <<'END'
#!/usr/bin/env bash
set -uo pipefail
way=
while [[ $1 == --* ]]; do
  case $1 in --mpi=*) way=${1#--mpi=} ;; esac
  shift
done
[[ -z ${FAKE_CODE:-} ]] || exit "$FAKE_CODE"
if [[ $way == pmix ]]; then
  exec mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 2 "$@"
fi
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=localhost SLURM_NODEID=0
tasks=()
for task in 0 1; do
  SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
  tasks+=($!)
done
largest=0
for task in "${tasks[@]}"; do
  wait "$task"
  code=$?
  ((code > largest)) && largest=$code
done
exit "$largest"
END
cat >bin/scontrol <<'END'
#!/usr/bin/env bash
echo "$@" >>scontrol.txt
END
chmod +x bin/srun bin/scontrol
export PATH=$folder/bin:$PATH SLURM_JOB_ID=launch-$$ TERRACE=$terrace MODEL=base/final DATA=text.txt

scripts=("$launch"/*.sbatch)
[[ ${#scripts[@]} == 2 ]] || fail "a script is not tested"
for script in "${scripts[@]}"; do
  name=$(basename "$script" .sbatch)
  [[ $name == slurm-sockets || $has_mpi == mpi ]] || continue
  RUN=$name bash "$script" >"$name.txt" 2>&1 || { cat "$name.txt" >&2; fail "$name does not train"; }
  [[ -s $name/final/model.safetensors ]] || fail "$name: there is no result"
  grep -q '2 data-parallel ranks' "$name.txt" || { cat "$name.txt" >&2; fail "$name: not two ranks"; }
  [[ ! -e scontrol.txt ]] || fail "$name: a run that is done was started again"
  code=0
  FAKE_CODE=75 RUN=$name bash "$script" >/dev/null 2>&1 || code=$?
  [[ $code == 75 ]] || fail "$name: exit code $code of a run that was saved"
  [[ $(cat scontrol.txt) == "requeue $SLURM_JOB_ID" ]] || fail "$name: a saved run is not started again"
  rm scontrol.txt
done

if ! python3 -c 'import yaml' 2>/dev/null; then
  echo "launch_test.sh: without Python's yaml, mpijob.yaml is not tested"
  exit 0
fi
python3 - "$launch/mpijob.yaml" >command.txt <<'END'
import sys
import yaml

job = yaml.safe_load(open(sys.argv[1]))
assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
replicas = job["spec"]["mpiReplicaSpecs"]
assert replicas["Launcher"]["replicas"] == 1
containers = replicas["Launcher"]["template"]["spec"]["containers"]
command = containers[0]["command"]
ranks = int(command[command.index("-n") + 1])
assert ranks == replicas["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
pod = replicas["Worker"]["template"]["spec"]
assert {m["name"] for m in pod["containers"][0]["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
print("\n".join(command))
END
[[ $has_mpi == mpi ]] || exit 0
mkdir -p storage/models storage/runs
cp -r base/final storage/models/llama
cp text.txt storage/data
mapfile -t words <command.txt
[[ ${words[0]} == mpirun ]] || fail "the command of mpijob.yaml is not mpirun"
words=("${words[@]:1}")
for i in "${!words[@]}"; do
  case ${words[i]} in
    terrace) words[i]=$terrace ;;
    /storage/*) words[i]=$folder${words[i]} ;;
  esac
done
"${mpirun[@]}" "${words[@]}" >job.txt 2>&1 || { cat job.txt >&2; fail "the command of mpijob.yaml fails"; }
[[ -s storage/runs/first/final/model.safetensors ]] || fail "the command of mpijob.yaml leaves no result"
