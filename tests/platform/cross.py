"""Compile the C core and its test drivers for every platform, and run what an emulator here can.

``python tests/platform/cross.py [TARGET ...]``; ``--list`` names the targets. The compiler is
Zig's (PyPI: ziglang), warnings are errors. Programs linked with musl run under qemu-user-static,
those for Windows under wine64, WebAssembly under node: what is not installed is an error. The
others are linked only, since they need a C library or a system that is not here.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "attn_ext"
DRIVERS = HERE.parent / "c"
FLAGS = "-O2 -std=c11 -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror -Wvla"
MINUTES = 15

sys.path.insert(0, str(DRIVERS))
from run import WRAPPED  # noqa: E402

# Zig's name of a target, and what runs its programs: "" is this machine, None nothing.
WASI = f"node --no-warnings {shlex.quote(str(HERE / 'wasi.mjs'))}"
TARGETS = {
    "x86_64-linux-gnu.2.17": "" if os.uname().machine == "x86_64" else None,
    "x86_64-linux-musl": "qemu-x86_64-static -cpu Haswell",
    "aarch64-linux-gnu.2.17": None,
    "aarch64-linux-musl": "qemu-aarch64-static -cpu neoverse-n1",
    "riscv64-linux-gnu.2.27": None,
    "riscv64-linux-musl": "qemu-riscv64-static",
    "s390x-linux-gnu.2.17": None,
    "s390x-linux-musl": "qemu-s390x-static",  # big-endian
    "powerpc64le-linux-gnu.2.32": None,  # the first with the long double of Clang's printf
    "powerpc64le-linux-musl": "qemu-ppc64le-static",
    "x86-linux-musl": "qemu-i386-static -cpu max",  # sizes of 32 bits
    "arm-linux-musleabihf": "qemu-arm-static",
    "x86_64-windows-gnu": shutil.which("wine64") or "/usr/lib/wine/wine64",
    "x86-windows-gnu": None,
    "aarch64-windows-gnu": None,
    "x86_64-macos": None,
    "aarch64-macos": None,
    "wasm32-wasi": WASI,
}
SUFFIXES = {"windows": ".exe", "wasi": ".wasm"}


def system_flags(target):
    """Give what a target needs beside the flags of all: no threads in WASI."""
    if target.startswith("wasm32"):
        return ["-msimd128"]
    if "windows" in target:  # whose wheels are of Microsoft's compiler
        return ["-pthread", "-DFA_MSVC_INTRINSICS=1", *(["-mxsave"] if "x86" in target else [])]
    return ["-pthread"]


def drivers(target):
    """Give the drivers that a target can have."""
    impossible = {
        "wasi": {"test_pool.c", "test_pool_long.c", "test_pool_starved.c"},  # want threads
        "x86_64-linux": {"test_cpu.c"},  # wants the compiler's check, which Zig's runtime lacks
    }
    left_out = {f"{name}.c" for name in WRAPPED}  # want what not every linker can do
    left_out = left_out.union(*(names for word, names in impossible.items() if word in target))
    return [path for path in sorted(DRIVERS.glob("test_*.c")) if path.name not in left_out]


def compiler(target):
    """Give the command that compiles for a target."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *FLAGS.split()]
    return [*command, *system_flags(target), "-I", CORE]


def compile_core(target, directory):
    """Compile the core to object files in the directory."""
    sources = [*CORE.glob("*.c"), *CORE.glob("isa/*.c")]
    objects = []
    for source in sorted(path for path in sources if path.name != "_native.c"):
        objects.append(directory / f"{source.stem}.o")
        subprocess.run([*compiler(target), "-c", source, "-o", objects[-1]], check=True)
    return objects


def link_driver(target, driver, objects, directory):
    """Compile one driver and link it with the core."""
    suffix = next((suffix for word, suffix in SUFFIXES.items() if word in target), "")
    program = directory / f"{driver.stem}{suffix}"
    subprocess.run([*compiler(target), driver, *objects, "-lm", "-o", program], check=True)
    return program


def run(emulator, program):
    """Run a driver; tell whether it passed in time."""
    environment = os.environ | {"WINEDEBUG": "-all"}
    command = [*shlex.split(emulator), program]
    try:
        return subprocess.run(command, env=environment, timeout=60 * MINUTES).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def check_target(target):
    """Build for a target and run what can be run; give the names of the drivers that fail."""
    emulator = TARGETS[target]
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        start = time.monotonic()
        objects = compile_core(target, directory)
        programs = [link_driver(target, path, objects, directory) for path in drivers(target)]
        print(f"{target}: {len(programs)} built, {time.monotonic() - start:.0f} s", flush=True)
        for program in programs if emulator is not None else []:
            start = time.monotonic()
            passed = run(emulator, program)
            print(f"  {program.stem}: {'passed' if passed else 'FAILED'},"
                  f" {time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
            failed += [] if passed else [f"{target} {program.stem}"]
    return failed


def main():
    """Check the targets given, or all; the exit code is 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET")
    parser.add_argument("--list", action="store_true", help="name the targets")
    options = parser.parse_args()
    if options.list:
        print(*TARGETS, sep="\n")
        return 0
    failed = [name for target in options.targets or TARGETS for name in check_target(target)]
    print("all passed" if not failed else f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
