#!/usr/bin/env python3
"""Build libppo_cuda.so: CUDA graphs, streams and memory for the worker, loaded at run time where there is a GPU.

usage: build.py OUT_FILE   (LIBTORCH names a libtorch with its headers; without it `.libtorch` of the checkout)

Needs a C++ compiler and neither nvcc nor the 5 GB of torch's CUDA wheels: headers of CUDA come from two small NVIDIA wheels of the
version that torch 2.11.0 was built with, and the libraries that are linked are empty ones of the right names. The real ones are in
the process when this one is loaded, or are found by the loader under those names.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# torch 2.11.0 on PyPI is built with CUDA 13.0; nvidia-cuda-runtime is the version that its metadata names.
WHEELS = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"]
STAND_INS = ["libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.13"]
HERE = pathlib.Path(__file__).resolve().parent


def fail(message):
    sys.exit(f"cuda-shim: {message}")


def run(command, problem):
    if subprocess.run([str(part) for part in command]).returncode != 0:
        fail(f"{problem}; its own words are above")


def headers(cache):
    """Folder with CUDA's headers, fetched once per machine."""
    home = cache / "cuda-headers-13.0.96"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="cuda-headers-") as folder:
        print(f"cuda-shim: fetching CUDA's headers from PyPI ({', '.join(WHEELS)}; 2.4 MB, once per machine) ...", file=sys.stderr)
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, "--python-version", "3.12",
             "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64", *WHEELS],
            f"pip could not download {' '.join(WHEELS)}")
        include = pathlib.Path(folder, "include")
        for wheel in pathlib.Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    _, inside, rest = name.partition("/include/")
                    if inside and not name.endswith("/"):
                        out = include / rest
                        out.parent.mkdir(parents=True, exist_ok=True)
                        out.write_bytes(archive.read(name))
        os.rename(include, home)  # complete or absent
    return home


def stand_in(folder, soname, compiler):
    """An empty library of that name: the linker notes the need, the loader finds the real one."""
    run([compiler, "-shared", "-o", folder / soname, "-x", "c", os.devnull, f"-Wl,-soname,{soname}"], "the C++ compiler could not link an empty library")


def main():
    if len(sys.argv) != 2:
        fail("usage: build.py OUT_FILE")
    out = pathlib.Path(sys.argv[1])
    libtorch = pathlib.Path(os.environ.get("LIBTORCH") or HERE.parents[2] / ".libtorch").resolve()
    if not (libtorch / "include/ATen/cuda/CUDAGraph.h").is_file():
        fail(f"{libtorch} has no include/ATen/cuda/CUDAGraph.h: run `make libtorch` first")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ppo")
    cuda, compiler = headers(cache), os.environ.get("CXX", "c++")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for soname in STAND_INS:
            stand_in(folder, soname, compiler)
        built = folder / "libppo_cuda.so"
        # The empty libraries define nothing: their symbols stay open until the real ones are loaded.
        run([compiler, "-shared", "-fPIC", "-O2", "-std=c++17", "-o", built, HERE / "shim.cpp", "-isystem", libtorch / "include", "-isystem", cuda,
             f"-L{libtorch / 'lib'}", "-Wl,--no-as-needed", *(folder / soname for soname in STAND_INS), "-l:libtorch_cpu.so", "-l:libc10.so",
             "-Wl,--allow-shlib-undefined", "-Wl,-soname,libppo_cuda.so"], "the shim did not compile")
        os.replace(built, out) if built.stat().st_dev == out.parent.stat().st_dev else out.write_bytes(built.read_bytes())
    print(f"cuda-shim: {out}", file=sys.stderr)


main()
