#!/usr/bin/env bash
# What `make demo-cluster` runs on the cluster of KUBECONFIG: the chart, a job of real pods, two killings, and the proof that they
# changed nothing. Each line that starts with $ is a command you can type yourself.
#   IMAGES    registry and path of our images, for a cluster that pulls them; unset: they are on its nodes
#   CTR       containerd's client on the node, to kill the actor's process; unset: its pod is deleted by force
set -euo pipefail
worker=$(realpath "${1:-target/release/ppo-worker}")
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
job=quickstart-cluster
runs=runs/$job
claim=$runs/volumes/quickstart
# Ctrl-C ends a run with a checkpoint and status 0, after which bash would go on to the next command.
trap 'exit 130' INT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { echo "demo-cluster: $*" >&2; exit 1; }
run() {
    printf '\033[2m$ %s\033[0m\n' "${*/#$worker/ppo-worker}"
    "$@"
}
now() { date +%s.%N; }
since() { "$python" -c 'import sys; print(f"{float(sys.argv[2]) - float(sys.argv[1]):.1f} s")' "$1" "$(now)"; }

# until SECONDS WHAT COMMAND...: waits until the command succeeds.
until_() {
    local seconds=$1 what=$2 end; shift 2
    end=$((SECONDS + seconds))
    while ! "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $end ]; then
            kubectl ppo why $job >&2 || true
            kubectl get pods -o wide >&2 || true
            fail "waited $seconds s for $what"
        fi
        case $(status phase) in Failed) kubectl ppo why $job >&2; fail "the job failed while this waited for $what" ;; esac
        sleep 0.2
    done
}
# With a limit: a request that hangs would outlive the deadline of what is waited for.
get() { kubectl get --request-timeout=30s "$@"; }
status() { get ppo $job -o "jsonpath={.status.$1}" 2>/dev/null || true; }
step() { local step; step=$(status progress.step); echo "${step:-0}"; }
at_step() { [ "$(step)" -ge "$1" ]; }
in_phase() { [ "$(status phase)" = "$1" ]; }
# The pod that replaced the one of an uid is ready.
replaced() { get pod "$1" -o json | "$python" -c '
import json, sys
pod = json.load(sys.stdin)
ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
sys.exit(not (pod["metadata"]["uid"] != sys.argv[1] and ready))' "$2"; }
uid() { get pod "$1" -o 'jsonpath={.metadata.uid}'; }

records=/volumes/quickstart-checkpoints/$job/metrics.jsonl
# Nothing that the image of a cluster of our own lacks, as grep.
is_recorded() { kubectl exec quickstart-files -- cat $records | grep step; }
# Seconds since $1 until the samples of the first step were drawn, whose record has just been found.
sampled() { kubectl exec quickstart-files -- cat $records | "$python" -c '
import json, sys
step = json.loads(sys.stdin.readline())
since = step["step_seconds"] - step["stages"]["generate"]
print(f"{float(sys.argv[2]) - float(sys.argv[1]) - since:.1f} s")' "$1" "$(now)"; }

# Only what the engine had begun goes to another one.
drawn_again() { kubectl exec quickstart-files -- cat $records | "$python" -c '
import json, sys
steps = [json.loads(line) for line in sys.stdin if line.endswith("\n")]
again, samples = sum(step["samples_drawn_again"] for step in steps), steps[-1]["samples"]
print(f"{again:.0f} samples were drawn again by another engine; a step has {samples:.0f}")'; }

for program in kubectl helm kubectl-ppo; do
    command -v $program >/dev/null || fail "$program is not in PATH"
done

say "1. The operator, by Helm"
set -- --set worker.image.variant=cpu
if [ -n "${IMAGES:-}" ]; then
    set -- "$@" --set "image.registry=$IMAGES" --set "worker.image.registry=$IMAGES"
fi
run helm upgrade --install ppo-operator charts/ppo-operator --namespace ppo-system --create-namespace "$@" --wait --timeout 120s
run helm test ppo-operator --namespace ppo-system --timeout 120s

say "2. A model to start from and a reward model, made here, and prompts; all copied to a claim"
run "$python" configs/quickstart/make_data.py "$claim/data"
# The files of configs/, with their places moved into the claim.
for file in quickstart/sft.yaml quickstart-cluster/rm.yaml; do
    sed -e "s#\.\./\.\./runs/quickstart/#$PWD/$claim/#" -e "s#config: model#config: $PWD/configs/quickstart/model#" \
        "configs/$file" > "$runs/$(basename "$file")"
done
[ -f "$claim/sft/model.safetensors" ] || run "$worker" sft -f "$runs/sft.yaml"
[ -f "$claim/rm/model.safetensors" ] || run "$worker" rm -f "$runs/rm.yaml"
run kubectl apply -f configs/quickstart-cluster/claims.yaml
run kubectl wait --for=condition=Ready pod/quickstart-files --timeout=120s
run kubectl cp "$claim/." quickstart-files:/volumes/quickstart --no-preserve

say "3. The job"
run kubectl delete ppo $job --ignore-not-found --timeout=120s
kubectl exec quickstart-files -- rm -rf /volumes/quickstart-checkpoints/$job
applied=$(now)
run kubectl apply -f configs/quickstart-cluster.yaml
until_ 300 "all pods to run" in_phase Running
echo "every pod ready $(since "$applied") after kubectl apply"
until_ 300 "the first step's record" is_recorded
echo "its first samples drawn $(sampled "$applied") after kubectl apply"
until_ 300 "the first step" at_step 1
echo "first step done $(since "$applied") after kubectl apply"
run kubectl get pods -l ppojob.dev/job=$job
run kubectl ppo status $job

say "4. A rollout engine is killed"
until_ 300 "step 8" at_step 8
victim=$job-rollout-1; old=$(uid $victim); killed=$(now); at=$(step)
run kubectl delete pod $victim --grace-period=1 --wait=false
until_ 300 "a step without it" at_step $((at + 2))
echo "two steps after step $at were done $(since "$killed") later"
until_ 300 "its successor to be ready" replaced $victim "$old"
echo "its successor was ready $(since "$killed") later"
drawn_again

say "5. The actor is killed"
until_ 600 "step 18" at_step 18
victim=$job-actor-0; old=$(uid $victim); at=$(step)
if [ -n "${CTR:-}" ]; then
    container=$(kubectl get pod $victim -o 'jsonpath={.status.containerStatuses[0].containerID}')
    killed=$(now)
    run $CTR tasks kill --signal SIGKILL "${container#containerd://}"
else
    killed=$(now)
    run kubectl delete pod $victim --grace-period=0 --force
fi
until_ 300 "its successor to be ready" replaced $victim "$old"
echo "its successor was ready $(since "$killed") later"
until_ 600 "step $((at + 1))" at_step $((at + 1))
echo "step $((at + 1)), the first that was lost or not yet made, was done $(since "$killed") later"
run kubectl ppo status $job

say "6. The end"
until_ 1800 "the job to succeed" in_phase Succeeded
echo "succeeded $(since "$applied") after kubectl apply, with $(status restarts) counted restarts"
run kubectl get ppo $job

say "7. The same manifest in one process, which nobody kills"
rm -rf "$runs/volumes/quickstart-checkpoints"
mkdir -p "$runs/volumes/quickstart-checkpoints"
run "$worker" run -f configs/quickstart-cluster.yaml --volumes "$runs/volumes" --run-dir "$runs/one-process" --fresh

say "8. The weights, bit by bit"
model=/volumes/quickstart-checkpoints/$job/model/model.safetensors
pods=$(run kubectl exec quickstart-files -- sha256sum $model)
here=$(run sha256sum "$runs/one-process/model/model.safetensors")
printf '%s\n' "$pods" "$here"
pods=$(tail -1 <<< "$pods" | cut -d' ' -f1)
here=$(tail -1 <<< "$here" | cut -d' ' -f1)
[ "$pods" = "$here" ] || fail "the weights differ: $pods in the pods, $here here. On a cluster of other CPUs than this machine's they may."
say "Equal: two killed pods changed no bit."
