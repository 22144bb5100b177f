"""What every engine is asked, and how a peer answers.

Rollout: prompt i has 24 to 64 random token ids; batch B is the first B prompts, all handed in at once; exactly 64 new tokens each at
temperature 1 over the whole vocabulary, end of sequence ignored. The clock runs from the hand-in until the last token ids are back.

A peer is a process: it says `BENCH {"ready": true}` once loaded, then reads a batch size per line and answers
`BENCH {"tokens": N, "seconds": S}`. Everything else it prints is ignored; it ends at the end of its input.
"""
import json
import random
import sys
import time

NEW_TOKENS = 64
SHORTEST, LONGEST = 24, 64
BATCHES = (1, 8, 32)
# Past the bytes and the specials of models.py.
FIRST_TOKEN = 260


def rollout_prompts(vocabulary, count=max(BATCHES)):
    """Token ids of `count` prompts, the same on every call."""
    source = random.Random(1234)
    return [[source.randrange(FIRST_TOKEN, vocabulary) for _ in range(source.randint(SHORTEST, LONGEST))] for _ in range(count)]


def text_prompts(count):
    """`count` prompts of as many letters as the others have tokens."""
    source = random.Random(4321)
    letters = "abcdefghijklmnopqrstuvwxyz "
    return ["".join(source.choice(letters) for _ in range(source.randint(SHORTEST, LONGEST))) for _ in range(count)]


def read_prompts(path):
    with open(path, encoding="utf-8") as lines:
        return [[int(token) for token in line.split()] for line in lines]


def say(**answer):
    print("BENCH " + json.dumps(answer), flush=True)


def serve(generate):
    """Answers batch sizes from standard input; `generate(batch)` returns the number of new tokens."""
    say(ready=True)
    for line in sys.stdin:
        began = time.perf_counter()
        tokens = generate(int(line))
        say(tokens=tokens, seconds=time.perf_counter() - began)
