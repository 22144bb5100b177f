#!/usr/bin/env python3
"""Build libppo_cuda.so: the engine's own kernels, CUDA graphs, streams and memory for the worker, loaded at run time where there is a GPU.

usage: build.py OUT_FILE   (LIBTORCH names a libtorch with its headers; without it `.libtorch` of the checkout)

Needs a C++ compiler, and neither a GPU nor an installed CUDA nor the 5 GB of torch's CUDA wheels: nvcc and CUDA's headers come from a few
of NVIDIA's wheels, of the version that torch 2.11.0 was built with, and the libraries that are linked are empty ones of the right names.
The real ones are in the process when this one is loaded, or are found by the loader under those names.
"""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import zipfile

# torch 2.11.0 on PyPI is built with CUDA 13.0; nvidia-cuda-runtime is the version that its metadata names.
WHEELS = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88"]
PROGRAMS = ["bin/*", "bin/crt/*", "nvvm/bin/*"]
# Machine code for A100, for H100, and for Blackwell in servers and in workstations; a code runs on later GPUs of its generation, too. Others
# translate the intermediate one when they load it.
CODES = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]", "-gencode=arch=compute_100,code=sm_100",
         "-gencode=arch=compute_120,code=sm_120"]
STAND_INS = ["libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.13"]
HERE = pathlib.Path(__file__).resolve().parent


def fail(message):
    sys.exit(f"cuda-shim: {message}")


def run(command, problem):
    if subprocess.run([str(part) for part in command]).returncode != 0:
        fail(f"{problem}; its own words are above")


def toolkit(cache):
    """Folder with nvcc and CUDA's headers, fetched once per machine."""
    home = cache / "cuda-13.0.96"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="cuda-") as folder:
        print(f"cuda-shim: fetching nvcc and CUDA's headers from PyPI ({', '.join(WHEELS)}; 100 MB, once per machine) ...", file=sys.stderr)
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--dest", folder,
             "--python-version", "3.12", *(f"--platform=manylinux{version}_x86_64" for version in ("2010", "2014", "_2_12", "_2_17")), *WHEELS],
            f"pip could not download {' '.join(WHEELS)}")
        unpacked = pathlib.Path(folder, "unpacked")
        for wheel in pathlib.Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    _, inside, rest = name.partition("nvidia/cu13/")
                    if inside and not name.endswith("/"):
                        out = unpacked / rest
                        out.parent.mkdir(parents=True, exist_ok=True)
                        out.write_bytes(archive.read(name))
        for program in (path for pattern in PROGRAMS for path in unpacked.glob(pattern) if path.is_file()):
            program.chmod(0o755)
        try:
            os.rename(unpacked, home)  # complete or absent
        except OSError:
            if not home.is_dir():  # else another process was first
                raise
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
    cuda, compiler = toolkit(cache), os.environ.get("CXX", "c++")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, which it takes whole: a process may have the library before in its memory.
    built = out.with_name(f".{out.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as at_end:
        at_end.callback(built.unlink, missing_ok=True)
        folder = pathlib.Path(folder)
        for soname in STAND_INS:
            stand_in(folder, soname, compiler)
        kernels = folder / "kernels.o"
        run([cuda / "bin/nvcc", "-std=c++17", "-O3", *CODES, "-ccbin", compiler, "-Xcompiler", "-fPIC", "-c", HERE / "kernels.cu", "-o", kernels],
            "nvcc could not compile the kernels")
        # The empty libraries define nothing: their symbols stay open until the real ones are loaded.
        run([compiler, "-shared", "-fPIC", "-O2", "-std=c++17", "-o", built, HERE / "shim.cpp", HERE / "fused.cpp", kernels, "-I", HERE, "-isystem", libtorch / "include",
             "-isystem", cuda / "include",
             f"-L{libtorch / 'lib'}", "-Wl,--no-as-needed", *(folder / soname for soname in STAND_INS), "-l:libtorch_cpu.so", "-l:libc10.so",
             "-Wl,--allow-shlib-undefined", "-Wl,-soname,libppo_cuda.so"], "the shim did not compile")
        os.replace(built, out)
    print(f"cuda-shim: {out}", file=sys.stderr)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what removes the temporary folders
main()
