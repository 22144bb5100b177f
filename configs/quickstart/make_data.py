#!/usr/bin/env python3
"""Two-digit addition: every pair of numbers from 10 to 99, 512 of the 8100 pairs held out.

usage: make_data.py FOLDER   writes FOLDER/{train,heldout}.jsonl, one {"prompt": "47+85=", "answer": "132"} a line
"""
import json
import pathlib
import random
import sys

HELD_OUT = 512


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(20).shuffle(pairs)
    for name, part in [("heldout", pairs[:HELD_OUT]), ("train", pairs[HELD_OUT:])]:
        lines = (json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) for a, b in part)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
