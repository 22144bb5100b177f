#!/usr/bin/env python3
"""Install libtorch for the worker, CPU part only, from the PyPI wheel `torch==2.11.0`.

The whole wheel with its CUDA wheels takes 5 GB; what a CPU build and run need is 450 MB of it. The result is a folder

    include/        every header of the wheel
    lib/            libtorch_cpu, libc10, libgomp, the two small CUDA libraries libtorch_cpu is linked to, and an empty
                    libtorch.so that stands for the one in the wheel (which would pull in libtorch_cuda)
    build-version   read by torch-sys, which refuses any other version than its own

kept in ${XDG_CACHE_HOME:-~/.cache}/ppo/libtorch-<version>-cpu, so that a machine downloads it once. `.libtorch` at the top of
the checkout is a link to it; `.cargo/config.toml` points LIBTORCH there. Where LIBTORCH_SOURCE names an installed torch
package folder (site-packages/torch), files are taken from there and nothing is downloaded.
"""
import contextlib
import fcntl
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

TORCH = "2.11.0"
WHEELS = [f"torch=={TORCH}", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85"]
LIBRARIES = ["libtorch_cpu.so", "libc10.so", "libgomp", "libcudart.so", "libcupti.so"]


def fail(message):
    sys.exit(f"fetch-libtorch: {message}")


def wanted(name):
    """Where a file of a wheel goes below the libtorch folder; None: it is not needed."""
    path = pathlib.PurePosixPath(name)
    if name.startswith("torch/include/"):
        return pathlib.PurePosixPath("include", *path.parts[2:])
    if "/lib/" in name and any(path.name.startswith(prefix) for prefix in LIBRARIES):
        # auditwheel may add a hash to libgomp's name; its soname carries the same hash, so the name stays.
        return pathlib.PurePosixPath("lib", path.name)
    return None


def download(into):
    # Without pip's cache, which would keep the wheels beside what is taken from them.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--dest", str(into),
               "--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_25_x86_64",
               "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux1_x86_64"]
    print(f"fetching libtorch {TORCH} from PyPI (530 MB, once per machine) ...", file=sys.stderr)
    done = subprocess.run(command + WHEELS)
    if done.returncode != 0:
        fail(f"pip could not download {' '.join(WHEELS)}; pip's own words are above. Needed: network access to PyPI, "
             f"2 GB of room in {into.parent} and 1 GB in {tempfile.gettempdir()} (TMPDIR names another folder); "
             f"or LIBTORCH_SOURCE=<site-packages>/torch of an installed torch {TORCH}")
    return sorted(into.glob("*.whl"))


def unpack(wheel, target):
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            place = None if info.is_dir() else wanted(info.filename)
            if place is None:
                continue
            out = target / place
            out.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, open(out, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def copy_installed(package, target):
    site, version = package.parent, package / "version.py"
    if not version.is_file():
        fail(f"LIBTORCH_SOURCE: {package} is no installed torch: it has no version.py")
    found = re.search(r"__version__ = '([^'+]*)", version.read_text())
    if not found or found[1] != TORCH:
        fail(f"LIBTORCH_SOURCE: {package} is torch {found[1] if found else 'of an unknown version'}, wanted is {TORCH}")
    for root in [package / "include", package / "lib", *site.glob("nvidia/**/lib"), *site.glob("torch.libs")]:
        for path in root.rglob("*"):
            if path.is_file() and (place := wanted(str(path.relative_to(site)).replace("torch.libs", "torch/lib"))):
                out = target / place
                out.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, out)


def stand_in(target):
    """An empty libtorch.so that needs libtorch_cpu: `-ltorch` links, and loads no CUDA library."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "empty.c")
        source.write_text("")
        lib = target / "lib"
        command = [os.environ.get("CC", "cc"), "-shared", "-o", str(lib / "libtorch.so"), str(source),
                   f"-L{lib}", "-Wl,--no-as-needed", "-l:libtorch_cpu.so", "-Wl,--allow-shlib-undefined"]
        if subprocess.run(command).returncode != 0:
            fail("the C compiler could not make lib/libtorch.so; is a C and C++ compiler installed (Debian: apt install g++)?")


def main():
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        fail(f"only Linux on x86-64 is supported, this is {platform.system()} on {platform.machine()}")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ppo")
    home = cache / f"libtorch-{TORCH}-cpu"
    check_named(os.environ.get("LIBTORCH"))
    cache.mkdir(parents=True, exist_ok=True)
    with alone(cache / f"libtorch-{TORCH}-cpu.lock"):
        if not (home / "build-version").is_file():
            install(home)
        link = pathlib.Path(__file__).resolve().parents[2] / ".libtorch"
        if not link.is_symlink() or os.readlink(link) != str(home):
            if link.is_dir() and not link.is_symlink():
                fail(f"{link} is a folder, and is to be a link to {home}: move it away")
            link.unlink(missing_ok=True)
            link.symlink_to(home)


def check_named(place):
    """A LIBTORCH of the user's own is what cargo builds against, in place of ours: it must be of our version."""
    if not place:
        return
    header = pathlib.Path(place, "include/torch/headeronly/version.h")
    if not header.is_file():
        fail(f"LIBTORCH={place} is no libtorch {TORCH}: it has no {header.relative_to(place)}. Unset LIBTORCH: one is fetched")
    found = re.search(r'#define TORCH_VERSION \\?\s*"([^"+]*)', header.read_text())
    if not found or found[1] != TORCH:
        fail(f"LIBTORCH={place} is libtorch {found[1] if found else 'of an unknown version'}, wanted is {TORCH}. Unset LIBTORCH: one is fetched")


@contextlib.contextmanager
def alone(lock):
    """Other processes that come here wait until this one has done."""
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def install(home):
    for left in home.parent.glob("libtorch-*.partial"):
        shutil.rmtree(left, ignore_errors=True)  # of one that was killed: nobody else is here
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="libtorch-", suffix=".partial") as folder:
        target = pathlib.Path(folder, "libtorch")
        source = os.environ.get("LIBTORCH_SOURCE")
        if source:
            copy_installed(pathlib.Path(source).resolve(), target)
        else:
            for wheel in download(pathlib.Path(folder)):
                unpack(wheel, target)
                wheel.unlink()
        for needed in LIBRARIES:
            if not any((target / "lib").glob(needed + "*")):
                fail(f"{needed} was not found in {source or 'the downloaded wheels'}")
        stand_in(target)
        (target / "build-version").write_text(TORCH + "\n")
        if home.exists():
            shutil.rmtree(home)
        os.rename(target, home)  # complete or absent: a broken download leaves nothing behind


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what removes the partial folder
    try:
        main()
    except OSError as error:
        fail(f"{error}; nothing incomplete is left behind, and the same command tries again")
    except KeyboardInterrupt:
        sys.exit(130)
