#!/usr/bin/env bash
# What `make demo` runs: a small model from nothing, PPO with a critic, then RLOO with a reward server. Each line that starts
# with $ is a command you can type yourself.
set -euo pipefail
worker=$(realpath "${1:-target/release/ppo-worker}")
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
reward=127.0.0.1:${REWARD_PORT:-5000}
# Ctrl-C ends a run with a checkpoint and status 0, after which bash would go on to the next command.
trap 'exit 130' INT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '\033[2m$ %s\033[0m\n' "${*/#$worker/ppo-worker}"; }
run() {
    show "$@"
    "$@"
}

answers() { (exec 3<>"/dev/tcp/${reward/:/\/}") 2>/dev/null; }
if answers; then
    echo "demo: $reward is in use: end what listens there, or choose another port: REWARD_PORT=5001 make demo" >&2
    exit 1
fi

say "1. Prompts: two-digit addition, 512 of 8100 pairs held out"
run "$python" configs/quickstart/make_data.py runs/quickstart/data

say "2. A supervised model to start from, stopped while it is right about a third of the time"
run "$worker" sft -f configs/quickstart/sft.yaml

say "3. PPO: actor, critic, reference, reward and rollout engine on this machine"
run "$worker" run -f configs/quickstart.yaml --run-dir runs/quickstart/ppo --fresh
run "$worker" report runs/quickstart/ppo

say "4. The same with RLOO and a reward server"
serve=("$worker" reward -f configs/quickstart.yaml --listen "$reward")
show "${serve[@]}"
# Not by `run`, whose process would be killed in its place; and in a process group of its own, out of reach of Ctrl-C: the step
# under way needs its rewards.
set -m
"${serve[@]}" &
set +m
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
for _ in $(seq 600); do
    answers && break
    kill -0 "$server" 2>/dev/null || { echo "demo: the reward server did not start" >&2; exit 1; }
    sleep 0.1
done
answers || { echo "demo: the reward server did not answer at $reward within a minute" >&2; exit 1; }
rloo=configs/rloo.yaml
if [ "$reward" != 127.0.0.1:5000 ]; then
    # As deep as the manifest, whose paths are relative.
    sed "s#127.0.0.1:5000#$reward#" $rloo > runs/rloo.yaml
    rloo=runs/rloo.yaml
fi
run "$worker" run -f $rloo --run-dir runs/quickstart/rloo --fresh
run "$worker" report runs/quickstart/rloo

say "Done. Open runs/quickstart/ppo/report.html; the trained model, loadable by transformers, is runs/quickstart/ppo/model"
