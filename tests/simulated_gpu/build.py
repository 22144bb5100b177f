#!/usr/bin/env python3
"""Build the simulated GPU once per machine and version of its sources, and print the folder that has it.

The folder is for LD_LIBRARY_PATH: in it the worker finds NVIDIA's driver, libtorch's CUDA part and NCCL, and in `graphs` below it our own
CUDA library, as on a machine with a GPU. `faults` in it is a program that uses them wrongly (faults.cpp).
"""
import concurrent.futures
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# What libtorch is given, by source file; the others stand for themselves.
TORCH_CUDA = ["attention", "device", "graphs", "kernels", "memory", "operators", "order", "streams", "threads"]
# Compiled or included as they are.
WORKERS = HERE.parents[1] / "worker/native"
OF_WORKER = [WORKERS / "guarded.h", *sorted((WORKERS / "cuda").glob("*.c*")), *sorted((WORKERS / "cuda").glob("kernels*/*")), WORKERS / "cuda/kernels.h"]


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"simulated-gpu: {' '.join(str(part) for part in command)} failed:\n{done.stdout}")


def build(folder, libtorch):
    compiler, link = os.environ.get("CXX", "c++"), [f"-L{folder}", f"-L{libtorch / 'lib'}", "-ltorch_cpu", "-lc10"]
    # Of two headers of one name, ours comes first.
    include = ["-I", HERE, "-isystem", libtorch / "include", "-isystem", libtorch / "include/torch/csrc/api/include"]

    def compile_one(name):
        run(compiler, "-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", *include, "-c", HERE / f"{name}.cpp", "-o", folder / f"{name}.o")

    # Whatever the compilers say, all are over before the folder goes.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, [*TORCH_CUDA, "nccl", "faults"]))
    shared = [compiler, "-shared"]
    run(*shared, "-o", folder / "libtorch_cuda.so", *(folder / f"{name}.o" for name in TORCH_CUDA), *link, "-Wl,-soname,libtorch_cuda.so")
    run(*shared, "-o", folder / "libnccl.so.2", folder / "nccl.o", "-l:libtorch_cuda.so", *link, "-Wl,-soname,libnccl.so.2")
    run(os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", folder / "libcuda.so.1", HERE / "driver.c")
    run(compiler, "-o", folder / "faults", folder / "faults.o", "-l:libtorch_cuda.so", *link, f"-Wl,-rpath,$ORIGIN:{libtorch / 'lib'}")
    # The functions of our library are among libtorch's part: one library under both names. In a folder of its own, to be left out.
    (folder / "graphs").mkdir()
    os.symlink("../libtorch_cuda.so", folder / "graphs/libppo_cuda.so")
    for leftover in folder.glob("*.o"):
        leftover.unlink()


def main():
    libtorch = pathlib.Path(os.environ.get("LIBTORCH") or HERE.parents[1] / ".libtorch").resolve()
    if not (libtorch / "include/ATen").is_dir():
        sys.exit(f"simulated-gpu: {libtorch} is no libtorch with its headers: run `make libtorch` first")
    version = hashlib.sha256(str(libtorch).encode())
    for source in [*sorted(HERE.iterdir()), *OF_WORKER]:
        if source.suffix in (".cpp", ".h", ".c", ".py", ".cu", ".cuh"):
            version.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ppo")
    home = cache / f"simulated-gpu-{version.hexdigest()[:12]}"
    if not home.is_dir():
        print("simulated-gpu: compiling it, once per machine (less than a minute on two cores) ...", file=sys.stderr)
        cache.mkdir(parents=True, exist_ok=True)
        folder = pathlib.Path(tempfile.mkdtemp(dir=cache, prefix="simulated-gpu-"))
        try:
            build(folder, libtorch)
            folder.chmod(0o755)
            os.rename(folder, home)  # complete or absent
        except OSError:
            if not home.is_dir():  # who built it at the same time was first
                raise
        finally:
            if folder.is_dir():
                subprocess.run(["rm", "-rf", str(folder)], check=False)
    print(home)


main()
