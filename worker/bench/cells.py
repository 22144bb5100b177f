"""figures.json and figures.md: written after every cell, so that a bench that was interrupted goes on where it was."""
import datetime
import hashlib
import json
import os
import pathlib
import subprocess

import report

HERE = pathlib.Path(__file__).parent
# What a change of makes another program.
MEASURED = ["..", "../../crds", "../../Cargo.toml", "../../Cargo.lock", "../../rust-toolchain.toml"]


class Figures:
    """Cells of one machine with one number of threads and runs. A cell is {kind, model, dtype, commit, measured, load, lines}."""

    def __init__(self, folder, machine, runs, keep_other_commits):
        self.folder, self.commit = folder, commit()
        self.all = {"machine": machine, "runs": runs, "cells": []}
        try:
            earlier = json.loads((folder / "figures.json").read_text())
        except FileNotFoundError:
            return
        if earlier.get("machine") == machine and earlier.get("runs") == runs:
            self.all["cells"] = [cell for cell in earlier["cells"] if keep_other_commits or cell["commit"] == self.commit]

    def has(self, kind, model, dtype):
        return any(key(cell) == (kind, model, dtype) for cell in self.all["cells"])

    def add(self, kind, model, dtype, measure):
        """Measures a cell and writes everything; takes the place of an earlier one."""
        before = os.getloadavg()[0]
        cell = {"kind": kind, "model": model, "dtype": dtype, "commit": self.commit,
                "measured": datetime.date.today().isoformat(), "load_before": before, "lines": measure()}
        self.all["cells"] = [other for other in self.all["cells"] if key(other) != key(cell)] + [cell]
        write(self.folder / "figures.json", json.dumps(self.all, indent=1) + "\n")
        write(self.folder / "figures.md", report.markdown(self.all))


def key(cell):
    return cell["kind"], cell["model"], cell["dtype"]


def commit():
    """The commit that is measured; where files differ from it, a plus and a digest of how: figures of other differences are others."""
    git = lambda *words: subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True, errors="replace").stdout.strip()
    differs = git("diff", "HEAD", "--", *MEASURED)
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + (f"+{hashlib.sha256(differs.encode()).hexdigest()[:6]}" if differs else "")


def write(path, text):
    """All of it or nothing."""
    aside = path.with_suffix(path.suffix + ".new")
    aside.write_text(text)
    aside.replace(path)
