"""Build the golden C driver for other platforms and run it under their emulators.

``python tests/platform/golden.py [TARGET ...]``, all but Bochs by default; ``--list`` names them.
``--build-only DIRECTORY`` leaves the programs there. The compiler is Zig's (PyPI: ziglang) for
every target but ``host``, whose compiler is ``cc`` or the value of CC. Emulators (Debian's
qemu-user-static, wine64, nodejs) have to be installed. Needs what the tests need.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DRIVER = ROOT / "tests" / "c" / "golden"
CORE = ROOT / "attn_ext"
FLAGS = "-O2 -std=c11 -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror"
TEST_SETS = "-DFA_WITH_WIDE16"
MINUTES = 15


@dataclass(frozen=True)
class Target:
    """How to build for a platform, how to run it, and which kernel sets have to run there."""

    compiler: str
    run: str
    sets: str
    flags: str = "-pthread -lm"
    suffix: str = ""


def zig(name):
    return f"{sys.executable} -m ziglang cc -target {name}"


QEMU_X86 = "qemu-x86_64-static -cpu"
WINE = shutil.which("wine64") or "/usr/lib/wine/wine64"
TARGETS = {
    "host": Target(os.environ.get("CC", "cc"), "", "scalar"),
    "host-zig": Target(zig("native"), "", "scalar"),
    "x86_64-old": Target(zig("x86_64-linux-musl"), f"{QEMU_X86} Conroe", "sse2"),
    "x86_64-haswell": Target(zig("x86_64-linux-musl"), f"{QEMU_X86} Haswell", "sse2 avx2 wide16"),
    "x86": Target(zig("x86-linux-musl"), "qemu-i386-static -cpu max", "scalar"),
    "aarch64": Target(zig("aarch64-linux-musl"), "qemu-aarch64-static -cpu neoverse-n1", "neon"),
    "arm": Target(zig("arm-linux-musleabihf"), "qemu-arm-static", "scalar"),
    "riscv64": Target(zig("riscv64-linux-musl"), "qemu-riscv64-static", "scalar"),
    "ppc64le": Target(zig("powerpc64le-linux-musl"), "qemu-ppc64le-static", "scalar"),
    "s390x": Target(zig("s390x-linux-musl"), "qemu-s390x-static", "scalar"),  # big-endian
    "windows": Target(zig("x86_64-windows-gnu"), WINE, "sse2", "", ".exe"),
    "wasm32": Target(
        f"{zig('wasm32-wasi')} -msimd128", f"node --no-warnings {HERE / 'wasi.mjs'}",
        "wasm128", "-lm", ".wasm",
    ),
}  # fmt: skip


def sources():
    """All of the driver and the core, without the generated module."""
    core = [*CORE.glob("*.c"), *CORE.glob("isa/*.c")]
    return [DRIVER / "golden.c", *sorted(path for path in core if path.name != "_native.c")]


def build(target, directory):
    """Compile the driver for a target; the calls on record are in the directory already."""
    program = directory / f"golden-{target}{TARGETS[target].suffix}"
    command = shlex.split(TARGETS[target].compiler) + FLAGS.split() + [TEST_SETS]
    command += ["-I", directory, "-I", DRIVER, "-I", CORE, *sources()]
    subprocess.run([*command, *TARGETS[target].flags.split(), "-o", program], check=True)
    return program


def run(target, program):
    """Run the driver; tell whether all digests were those on record."""
    command = [*shlex.split(TARGETS[target].run), program, *TARGETS[target].sets.split()]
    environment = os.environ | {"WINEDEBUG": "-all"}
    return subprocess.run(command, env=environment, timeout=60 * MINUTES).returncode == 0


def write_cases(directory):
    """Write the calls on record as C into the directory."""
    command = [sys.executable, DRIVER / "write_cases.py", directory / "golden_cases.h"]
    subprocess.run(command, env=os.environ | {"FAST_ATTENTION_BACKEND": "numpy"}, check=True)


def main():
    """Build and run; the exit code is 0 if every target passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--build-only", metavar="DIRECTORY", type=Path)
    options = parser.parse_args()
    if options.list:
        print(*TARGETS, sep="\n")
        return 0
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.build_only or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        write_cases(directory)
        for target in options.targets or TARGETS:
            print(f"--- {target}", flush=True)
            program = build(target, directory)
            results[target] = options.build_only is not None or run(target, program)
    for target, passed in results.items():
        print(f"{target}: {'passed' if passed else 'FAILED'}")
    return not all(results.values())


if __name__ == "__main__":
    sys.exit(main())
