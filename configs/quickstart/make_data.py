#!/usr/bin/env python3
"""Two-digit addition: every pair of numbers from 10 to 99, 512 of the 8100 pairs held out.

usage: make_data.py FOLDER   writes FOLDER/{train,heldout}.jsonl, one {"prompt": "47+85=", "answer": "132"} a line, and
                             FOLDER/{train,heldout}-pairs.jsonl for a reward model, one {"prompt": "47+85=", "chosen": "132", "rejected": "142"}
"""
import json
import pathlib
import random
import sys

HELD_OUT = 512


def wrong(answer, draw):
    """Another sum of two such numbers, any of them."""
    other = draw.randint(20, 197)
    return other + 1 if other >= answer else other


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(20).shuffle(numbers)
    for name, part in [("heldout", numbers[:HELD_OUT]), ("train", numbers[HELD_OUT:])]:
        lines = (json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) for a, b in part)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        draw = random.Random(21)
        pairs = (json.dumps({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(wrong(a + b, draw))}) for a, b in part)
        (folder / f"{name}-pairs.jsonl").write_text("\n".join(pairs) + "\n")


if __name__ == "__main__":
    main()
