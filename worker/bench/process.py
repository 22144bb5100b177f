"""Processes that are measured: started, spoken to and stopped, every wait with a deadline."""
import json
import os
import selectors
import signal
import subprocess
import sys
import time


class BenchError(Exception):
    """A measured process broke off; the message says which and where its own words are."""


class Overdue(BenchError):
    """It was still at work when its time was over."""


class Process:
    """A process in a group of its own. Only lines that `parse` turns into something are looked at."""

    def __init__(self, name, command, log, environment=None, parse=None):
        self.name, self.log, self.parse = name, log, parse or bench_line
        self.began = time.perf_counter()
        with open(log, "w", encoding="utf-8") as errors:
            self.child = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                          env={**os.environ, **(environment or {})}, start_new_session=True)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.child.stdout, selectors.EVENT_READ)
        self.buffer = b""
        self.ended = False

    def answer(self, deadline):
        """The next parsed line; None at the end of its output."""
        until = time.monotonic() + deadline
        while True:
            line, newline, rest = self.buffer.partition(b"\n")
            if newline:
                self.buffer = rest
                parsed = self.parse(line.decode(errors="replace"))
                if parsed is not None:
                    return parsed
                continue
            if not self.selector.select(max(0.0, until - time.monotonic())):
                self.kill()
                raise Overdue(f"{self.name}: no answer within {deadline} s; see {self.log}")
            chunk = os.read(self.child.stdout.fileno(), 1 << 16)
            if not chunk:
                return None
            self.buffer += chunk

    def expect(self, deadline):
        """The next parsed line, which must come."""
        answer = self.answer(deadline)
        if answer is None:
            self.kill()
            raise BenchError(f"{self.name}: ended before it answered; its last words in {self.log}:\n{tail(self.log)}")
        return answer

    def elapsed(self):
        """Seconds since it was started."""
        return time.perf_counter() - self.began

    def ask(self, line, deadline):
        try:
            self.child.stdin.write(line.encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended: `expect` tells its last words.
        return self.expect(deadline)

    def freeze(self):
        """Stops the whole group, so that no spinning thread of an idle peer takes time from the one on the clock."""
        os.killpg(self.child.pid, signal.SIGSTOP)

    def thaw(self):
        os.killpg(self.child.pid, signal.SIGCONT)

    def finish(self, deadline):
        """Ends its input, waits for its end. Returns its peak resident memory in MiB."""
        self.thaw()
        self.child.stdin.close()
        until = time.monotonic() + deadline
        while time.monotonic() < until:
            ended, status, usage = os.wait4(self.child.pid, os.WNOHANG)
            if ended:
                self.ended = True
                self.child.returncode = os.waitstatus_to_exitcode(status)
                if self.child.returncode != 0:
                    raise BenchError(f"{self.name}: exit status {self.child.returncode}; its last words in {self.log}:\n{tail(self.log)}")
                return usage.ru_maxrss / 1024
            time.sleep(0.05)
        self.kill()
        raise BenchError(f"{self.name}: did not end within {deadline} s after its input ended; see {self.log}")

    def kill(self):
        if not self.ended:
            self.ended = True
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()


def bench_line(line):
    return json.loads(line.removeprefix("BENCH ")) if line.startswith("BENCH ") else None


def program(main):
    """Runs `main`. Ended from outside it still ends the processes that it started: they may be frozen, and are in groups of their own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by SIGTERM"))
    try:
        main()
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def tail(path, lines=12):
    with open(path, encoding="utf-8", errors="replace") as text:
        return "".join(text.readlines()[-lines:])
