"""Check the branch of the core that Microsoft's compiler takes, without that compiler.

``python tests/platform/msvc.py [SOURCES]``, by default this tree's. clang-cl (Debian: clang-tools)
parses every C file for x86-64 and ARM64 Windows as if it were not Clang, with the headers in
``msvc/`` in place of Microsoft's; extensions of GNU C are errors. Nothing is linked or run.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = (
    "/std:c11 /Zs /W4 /WX -U__clang__ -U__GNUC__ -U__GNUC_MINOR__ -Wgnu -Wvla "
    "-Wno-unused-command-line-argument -Wno-gnu-include-next"
)
TARGETS = {"x86_64": "x86_64-pc-windows-msvc", "arm64": "aarch64-pc-windows-msvc"}
# Read before each file: after it what only GNU C has is an error.
FIRST = {"x86_64": "immintrin.h", "arm64": "arm_neon.h"}
# Clang wants what MSVC does without: flags for the intrinsics of a file.
FEATURES = {"avx2": ["-mavx2", "-mfma", "-mf16c"], "avx512": ["-mavx512f", "-mavx512dq",
            "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"]}  # fmt: skip


def find_compiler():
    """Give the name of clang-cl, with or without a version."""
    for name in ("clang-cl", *(f"clang-cl-{version}" for version in range(25, 13, -1))):
        if shutil.which(name):
            return name
    sys.exit("clang-cl not found: expected clang-cl or clang-cl-<version> on the path")


def check(compiler, target, source, core):
    """Parse one file; tell whether it is C that MSVC has."""
    command = [compiler, f"--target={TARGETS[target]}", *FLAGS.split()]
    if target == "x86_64":
        command += FEATURES.get(source.stem.partition("_")[0], [])
    # "--": a path may look like an option
    command += [f"/FI{FIRST[target]}", "/I", HERE / "msvc", "/I", core, "--", source]
    return subprocess.run(command).returncode == 0


def main():
    """Check every file for every target; the exit code is 0 if all passed."""
    core = (Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1]) / "attn_ext"
    compiler = find_compiler()
    sources = [*core.glob("*.c"), *core.glob("isa/*.c")]
    sources = sorted(path for path in sources if path.name != "_native.c")
    failed = [
        f"{target} {source.name}"
        for target in TARGETS
        for source in sources
        if not check(compiler, target, source, core)
    ]
    print(f"{len(sources) * len(TARGETS) - len(failed)} passed, {len(failed)} failed", *failed)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
