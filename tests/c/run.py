"""Compile the C core with each test_*.c of this folder and run them, plain and under sanitizers.

``python tests/c/run.py [compiler ...]`` takes gcc and clang by default, whichever are there; the
first also builds with sanitizers.
Every driver is a program of its own: it includes the core's headers, links all of the core, and
exits with 0 if all is well. Warnings are errors, and so are large stack frames of the plain core.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "attn_ext"
COMMON = "-std=c11 -g1 -ffp-contract=off -fno-math-errno -pthread -Wall -Wextra -Werror -Wvla"
COMMON += " -DFA_WITH_WIDE16"  # 16 lanes, which most CPUs would not show otherwise
CHECKED = "-O1 -fno-omit-frame-pointer -fno-sanitize-recover=all"
CHECKED += " -Wno-maybe-uninitialized -Wno-unknown-warning-option"  # of GCC; and for Clang
BUILDS = {
    "plain": "-O3",
    "address": f"{CHECKED} -fsanitize=address,undefined",
    "thread": f"{CHECKED} -fsanitize=thread",
}
FRAME_LIMIT = "-Wframe-larger-than=16384"  # of the core: threads of others may have small stacks
OPTIONS = {
    # its stack for returned frames is not aligned for vectors of 64 bytes (GCC 12)
    "ASAN_OPTIONS": "detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "die_after_fork=0",  # the pool is tested across a fork
}
SECONDS = 300
WRAPPED = {
    "test_no_memory": ("-Wl,--wrap=malloc", "-Wl,--wrap=free"),
    "test_stopping": ("-Wl,--wrap=fa_pool_stopping", "-Wl,--wrap=fa_pool_leaving"),
    "test_plan": (
        "-Wl,--wrap=malloc",
        "-Wl,--wrap=fa_pool_run",
        "-Wl,--wrap=fa_pool_run_rounds",
    ),
}


def core_sources():
    """Give all C files of the core; the generated module is not one of them."""
    files = sorted([*CORE.glob("*.c"), *CORE.glob("isa/*.c")])
    return [path for path in files if path.name != "_native.c"]


def compile_file(compiler, flags, source, directory):
    """Compile one file to an object file in the directory."""
    target = directory / f"{source.stem}.o"
    command = [compiler, *COMMON.split(), *flags, "-I", CORE, "-c", source, "-o", target]
    if source.parent != HERE and "-fsanitize" not in " ".join(flags):
        command.append(FRAME_LIMIT)
    if subprocess.run(command).returncode != 0:
        sys.exit(f"{source.name} does not compile")
    return target


def run_driver(program, name):
    """Run a compiled driver; tell whether it passed."""
    try:
        code = subprocess.run([program], env=os.environ | OPTIONS, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        code = f"none within {SECONDS} s"
    print(f"{name}: {'passed' if code == 0 else f'FAILED, exit code {code}'}", flush=True)
    return code == 0


def run_build(compiler, build):
    """Compile core and drivers one way, and run the drivers."""
    flags = BUILDS[build].split()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as threads:
        directory = Path(scratch)
        sources = core_sources() + sorted(HERE.glob("test_*.c"))
        objects = list(threads.map(lambda s: compile_file(compiler, flags, s, directory), sources))
        core = [target for target in objects if not target.stem.startswith("test_")]
        results = []
        for driver in objects[len(core) :]:
            if sys.platform == "darwin" and driver.stem in WRAPPED:
                continue  # Apple's linker wraps no functions
            program = driver.with_suffix("")
            wrapped = WRAPPED.get(driver.stem, ())
            linked = [driver, *core, "-lm", *wrapped, "-o", program]
            command = [compiler, *flags, "-pthread", *linked]
            subprocess.run(command, check=True)
            results.append(run_driver(program, f"{compiler} {build} {driver.stem}"))
    return results


def main():
    """Run everything; the exit code is 0 if all drivers passed."""
    compilers = sys.argv[1:] or [name for name in ("gcc", "clang") if shutil.which(name)]
    if not compilers:
        sys.exit("no compiler found: expected gcc or clang on the path, or a name as argument")
    builds = [(compilers[0], build) for build in BUILDS] + [
        (name, "plain") for name in compilers[1:]
    ]
    results = [passed for build in builds for passed in run_build(*build)]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
