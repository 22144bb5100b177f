#!/usr/bin/env bash
# What `make demo` runs: a small model from nothing, PPO with a critic, then RLOO with a reward server. Each line that starts
# with $ is a command you can type yourself.
set -euo pipefail
worker=$(realpath "${1:-target/release/ppo-worker}")
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
reward=127.0.0.1:5000

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '\033[2m$ %s\033[0m\n' "${*/#$worker/ppo-worker}"; }
run() {
    show "$@"
    "$@"
}

answers() { (exec 3<>"/dev/tcp/${reward/:/\/}") 2>/dev/null; }
if answers; then
    echo "demo: $reward is in use: end what listens there" >&2
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
# Not by `run`, whose process would be killed in its place.
"${serve[@]}" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
    answers && break
    kill -0 "$server" 2>/dev/null || { echo "demo: the reward server did not start" >&2; exit 1; }
    sleep 0.1
done
run "$worker" run -f configs/rloo.yaml --run-dir runs/quickstart/rloo --fresh
run "$worker" report runs/quickstart/rloo

say "Done. Open runs/quickstart/ppo/report.html; the trained model, loadable by transformers, is runs/quickstart/ppo/model"
