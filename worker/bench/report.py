"""The bench's figures as Markdown."""
import statistics

NAMES = {"ours": "**ours**", "transformers": "transformers 4.57", "vllm": "vLLM 0.32 (CPU)", "llama": "llama.cpp (0.3.36)", "trl": "TRL 0.24"}


def rollout_table(lines):
    """Tokens per second; in brackets how many times as fast ours is."""
    out = ["| model | dtype | engine | batch 1 | batch 8 | batch 32 | peak RSS MiB | ready after s |", "|---|---|---|---|---|---|---|---|"]
    for line in lines:
        ours = next((other for other in lines if other["engine"] == "ours" and same_model(other, line)), None)

        def cell(batch):
            # JSON has no numbers for keys.
            rate = line["tokens_per_s"][str(batch)]
            return f"{rate:.0f}" if ours in (None, line) else f"{rate:.0f} ({ours['tokens_per_s'][str(batch)] / rate:.2f}x)"

        out.append(f"| {line['model']} | {line['dtype']} | {NAMES[line['engine']]} | {cell(1)} | {cell(8)} | {cell(32)} | "
                   f"{line['peak_mib']:.0f} | {line['startup_s']:.1f} |")
    return "\n".join(out)


def step_table(lines):
    out = ["| model | dtype | TRL s/step | ours s/step | faster | TRL peak MiB | ours peak MiB | memory |", "|---|---|---|---|---|---|---|---|"]
    for trl in (line for line in lines if line["trainer"] == "trl"):
        ours = next(line for line in lines if line["trainer"] == "ours" and same_model(line, trl))
        seconds, peak = ours["median_s"], ours["peak_mib"]
        if over := trl.get("over_s"):
            cells = [f"over {over}", f"{seconds:.2f}", f"over {over // seconds:.0f}x", "", f"{peak:.0f}", ""]
        else:
            cells = [f"{trl['median_s']:.2f}", f"{seconds:.2f}", f"{trl['median_s'] / seconds:.2f}x",
                     f"{trl['peak_mib']:.0f}", f"{peak:.0f}", f"{peak / trl['peak_mib']:.2f}x"]
        out.append(" | ".join([f"| {trl['model']}", trl["dtype"], *cells]) + " |")
    return "\n".join(out)


def stage_table(lines):
    """Where our steps spend their time."""
    ours = [line for line in lines if line.get("stages")]
    stages = list(dict.fromkeys(stage for line in ours for stage in line["stages"]))
    out = ["| ours, seconds of a step in | " + " | ".join(stages) + " |", "|---" * (len(stages) + 1) + "|"]
    for line in ours:
        cells = (f"{statistics.median(line['stages'].get(stage, [0.0])):.3f}" for stage in stages)
        out.append(f"| {line['model']} {line['dtype']} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def same_model(one, other):
    return one["model"] == other["model"] and one["dtype"] == other["dtype"]


def lines_of(figures, kind):
    """The lines of all cells of a kind; models and precisions in one order whatever was measured first."""
    cells = [cell for cell in figures["cells"] if cell["kind"] == kind]
    order = lambda cell: (len(cell["model"]), cell["model"], cell["dtype"] != "float32")
    return [line for cell in sorted(cells, key=order) for line in cell["lines"]]


def markdown(figures):
    machine, cells = figures["machine"], figures["cells"]
    of = lambda field: ", ".join(sorted({cell[field] for cell in cells}))
    parts = [f"{machine['processor']}, {machine['threads']} threads, {machine['memory_gib']} GiB; {of('measured')}; commit {of('commit')}; rollouts are "
             f"medians of {figures['runs']} runs taken in turns."]
    if rollouts := lines_of(figures, "rollout"):
        parts += ["Rollout, tokens per second (in brackets: how many times as fast ours is):", rollout_table(rollouts)]
    if steps := lines_of(figures, "steps"):
        parts += ["PPO step (batch 8, 64 new tokens, 3 epochs):", step_table(steps), stage_table(steps)]
    return "\n\n".join(parts) + "\n"
