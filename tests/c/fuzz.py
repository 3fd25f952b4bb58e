"""Fuzz the C interface of the core with libFuzzer under AddressSanitizer.

``python tests/c/fuzz.py [--seconds N] [--jobs N] [--all] [--true-sizes] [--minimise] [target ...]``

A target is a program fuzz/<target>.c; without a name all of them run. Each starts from the inputs
in fuzz/corpus/<target>/. The exit code is 0 if nothing was found; an input that fails is left in
the current directory, and ``--replay FILE target`` runs it again.

By default the kernel sets are few and the constants of the core small, so that the build takes a
minute and short calls reach every path.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run import COMMON, CORE, OPTIONS

HERE = Path(__file__).resolve().parent / "fuzz"
CORPUS = HERE / "corpus"
FLAGS = f"{COMMON} -O1 -fno-omit-frame-pointer -fno-sanitize-recover=all"
FLAGS += " -Wno-pass-failed"  # loops with checks in them are not unrolled
FLAGS += " -D__SANITIZE_ADDRESS__=1"  # older Clangs do not say it: see FA_INLINE
FEEDBACK = "inline-8bit-counters,pc-table"  # comparisons in the core tell nothing of the input
LIMITS = ["-max_len=256", "-timeout=300", "-report_slow_units=300", "-rss_limit_mb=2048"]
CLASSES = {"scalar": "unfused", "sse2": "unfused", "avx2": "fused", "avx512": "fused",
           "wide16": "fused", "neon": "fused"}  # fmt: skip
# Where the core changes its way, and what a result must not depend on, but FA_SEGMENT: a segment
# of other size is another arithmetic, the same for all that is compared.
SMALLER = {
    "fa.h": {"FA_SEGMENT": "2"},
    "kernels/attention.inl.h": {
        "WORK_PER_THREAD": "2e3",
        "WORK_PER_TASK": "1e3",
        "TASKS_PER_THREAD": "2",
        "TINY_KEYS": "3",
        "TINY_REALS": "64",
    },
    "kernels/tile_state.inl.h": {"TILE_PANELS": "2"},
    "kernels/few_split.inl.h": {"SEGMENTS_PER_THREAD": "2"},
    "kernels/reduction.inl.h": {"ELEMENTS_PER_TASK": "256", "ELEMENTS_PER_THREAD": "100.0"},
    "kernels/softmax_along.inl.h": {
        "ROW_BUFFER": "64",
        "REALS_AT_ONCE": "128",
        "REALS_AHEAD": "256",
    },
    "kernels/softmax_across.inl.h": {"STRIP_REALS": "((int64_t)2560)"},
    "kernels/passes.inl.h": {"STRETCH": "64"},
}


def find_compiler():
    """Give the name of a Clang that links a fuzz target."""
    program = "int LLVMFuzzerTestOneInput(const char *, unsigned long);"
    program += "int LLVMFuzzerTestOneInput(const char *x, unsigned long n) { return !x && n; }"
    for name in ("clang", *(f"clang-{version}" for version in range(25, 13, -1))):
        if not shutil.which(name):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            command = [name, "-x", "c", "-", "-fsanitize=fuzzer,address,undefined"]
            command += ["-o", Path(scratch) / "program"]
            if subprocess.run(command, input=program, text=True, stderr=-3).returncode == 0:
                return name
    sys.exit("no Clang with libFuzzer found: expected clang, and its runtime libraries")


def has(feature):
    """Tell whether the processor has it, as far as Linux says."""
    said = Path("/proc/cpuinfo")
    return said.exists() and re.search(rf"\b{feature}\b", said.read_text()) is not None


def kernel_sets(everything):
    """Choose the kernel sets to compile, two of a class if there are."""
    if platform.machine() not in ("x86_64", "AMD64"):
        neon = platform.machine() in ("aarch64", "arm64")
        return ["scalar", "neon"] if neon else ["scalar"]
    if everything:
        return ["scalar", "sse2", "avx2", "avx512", "wide16"]
    return ["scalar", "avx2", "avx512" if has("avx512vl") else "wide16"]


def copy_of_core(to, *, smaller):
    """Copy the core, with smaller constants."""
    shutil.copytree(CORE, to)
    for name, constants in SMALLER.items() if smaller else ():
        text = (to / name).read_text()
        for constant, value in constants.items():
            text, n = re.subn(rf"(?m)^#define {constant} .*?$", f"#define {constant} {value}", text)
            if n != 1:
                sys.exit(f"{name} defines {constant} {n} times, expected once")
        (to / name).write_text(text)


def build(compiler, targets, directory, options):
    """Compile the core once and a program per target; return their paths."""
    core = directory / "core"
    copy_of_core(core, smaller=not options.true_sizes)
    sets = kernel_sets(options.all)
    sanitizers = "address,undefined" if options.all else "address"
    table = " ".join(f"SET({name}, {CLASSES[name]})" for name in sets)
    flags = [*FLAGS.split(), "-I", core]
    checked = [f"-fsanitize={sanitizers}", f"-fsanitize-coverage={FEEDBACK}"]
    in_target = ["-O2", f"-DFA_FUZZ_SETS={table}"]
    if options.true_sizes:
        in_target += ["-DFA_FUZZ_WORK=4e6", "-DFA_FUZZ_ELEMENTS=200000"]
    sources = [core / f"isa/{name}_{real}.c" for name in sets for real in ("f32", "f64")]
    sources += [core / "cpu.c", core / "pool.c", *(HERE / f"{name}.c" for name in targets)]

    def compile_file(source):
        target = directory / f"{source.stem}.o"
        own = in_target if source.parent == HERE else checked
        command = [compiler, *flags, *own, "-c", source, "-o", target]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"{source.name} does not compile")
        return target

    with ThreadPoolExecutor(options.jobs) as threads:
        objects = list(threads.map(compile_file, sources))
    programs = {}
    for name, target in zip(targets, objects[-len(targets) :], strict=True):
        programs[name] = directory / name
        linked = [target, *objects[: -len(targets)], "-lm", "-pthread", "-o", programs[name]]
        subprocess.run([compiler, *flags, f"-fsanitize=fuzzer,{sanitizers}", *linked], check=True)
    return programs


def fuzz(name, program, corpus, seconds):
    """Run one target for a while; tell whether nothing was found."""
    corpus.mkdir()
    command = [program, f"-max_total_time={seconds}", *LIMITS, "-entropic=0"]
    command += ["-len_control=0", f"-artifact_prefix=failed_{name}_", corpus]
    command += [path for path in (CORPUS / name,) if path.is_dir()]
    ended = subprocess.run(
        command, env=os.environ | OPTIONS, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    lines = ended.stderr.splitlines()
    last = [line for line in lines if " cov: " in line][-1:]
    if ended.returncode != 0:
        print("\n".join(lines[-80:]))
    outcome = "nothing found" if ended.returncode == 0 else "FAILED"
    print(f"{name}: {outcome}; {' '.join(last)}", flush=True)
    return ended.returncode == 0


def minimise(name, program, corpus):
    """Put the fewest inputs that reach the same code, of the old and the new, in the corpus."""
    with tempfile.TemporaryDirectory() as merged:
        sources = [corpus, *(path for path in (CORPUS / name,) if path.is_dir())]
        command = [program, "-merge=1", "-use_counters=0", *LIMITS, merged, *sources]
        subprocess.run(command, env=os.environ | OPTIONS, check=True, stderr=subprocess.DEVNULL)
        shutil.rmtree(CORPUS / name, ignore_errors=True)
        shutil.copytree(merged, CORPUS / name)
    kept = list((CORPUS / name).iterdir())
    print(f"{name}: {len(kept)} inputs, {sum(path.stat().st_size for path in kept)} bytes")


def replay(program, files):
    """Run single inputs; tell whether all passed."""
    return subprocess.run([program, *files], env=os.environ | OPTIONS).returncode == 0


def main():
    """Build and fuzz; the exit code is 0 if nothing was found."""
    known = sorted(path.stem for path in HERE.glob("*.c"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(known))
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at the same time")
    parser.add_argument("--all", action="store_true", help="all kernel sets, both sanitizers")
    parser.add_argument("--true-sizes", action="store_true", help="constants as they are")
    parser.add_argument("--minimise", action="store_true", help="update the corpus afterwards")
    parser.add_argument("--replay", nargs="+", metavar="FILE", help="run these of one target only")
    options = parser.parse_args()
    targets = options.targets or known
    if unknown := set(targets) - set(known):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if options.replay and len(targets) != 1:
        parser.error("--replay needs one target")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        programs = build(find_compiler(), targets, directory, options)
        if options.replay:
            sys.exit(not replay(programs[targets[0]], options.replay))
        corpora = {name: directory / f"corpus_{name}" for name in targets}

        def run_target(name):
            return fuzz(name, programs[name], corpora[name], options.seconds)

        with ThreadPoolExecutor(options.jobs) as threads:
            passed = list(threads.map(run_target, targets))
        for name in targets if options.minimise else ():
            minimise(name, programs[name], corpora[name])
    print(f"{passed.count(True)} targets without a finding, {passed.count(False)} with one")
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
