"""Check the inner loops of the micro-kernels in object files: ``inner_loops.py OBJECT ...``.

By the name of its instruction set, an object file must have loops in ``score_plain``,
``score_with_rules`` and ``add_values``, and in their like for half a panel and for two panels,
whose bodies hold the fused multiply-adds of a whole tile on the widest registers, and no loop of a
tile may touch the stack: sums that do not fit in registers would.
Needs objdump (OBJDUMP, by default ``objdump``).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

FUNCTIONS = ("score_plain", "score_with_rules", "add_values")
OF_NARROW = ("score_narrow_plain", "score_narrow_with_rules", "add_values_of_narrow")
OF_PAIRS = ("score_pair", "add_values_of_pair")
FMA = {  # instruction set: multiply-adds of a tile, of half a panel, and what one looks like
    "avx2": (12, 8, r"vfmadd\d+p[sd] .*%ymm"),
    "avx512": (24, 8, r"vfmadd\d+p[sd] .*%zmm"),
    "neon": (24, 16, r"fmla\s+v"),
}
STACK = r"\(%[re][sb]p|\[sp"
JUMP = r"^(?:j\w+|b\.\w+|cbn?z|tbn?z)\s(?:.*[ ,])?([0-9a-f]+) <"


def instructions(path, function):
    """List (address, text) of a function."""
    command = [os.environ.get("OBJDUMP", "objdump"), "-d", "--no-show-raw-insn", path]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    body = re.search(rf"^[0-9a-f]+ <{function}(?:\.\w+)*>:\n(.*?)(?:\n\n|\Z)", listing, re.M | re.S)
    if body is None:
        sys.exit(f"{path} has no function {function}")
    found = re.findall(r"^\s*([0-9a-f]+):\s+(.+)$", body[1], re.M)
    return [(int(address, 16), text.strip()) for address, text in found]


def inner_loops(code):
    """List the bodies of loops that hold no other loop."""
    starts = {address: index for index, (address, _) in enumerate(code)}
    loops = []
    for end, (address, text) in enumerate(code):
        jump = re.match(JUMP, text)
        start = starts.get(int(jump[1], 16)) if jump else None
        if start is not None and code[start][0] <= address:
            loops.append((start, end))
    return [
        [text for _, text in code[start : end + 1]]
        for start, end in loops
        if not any((start, end) != (s, e) and start <= s and e <= end for s, e in loops)
    ]


def complaints(path, isa, function):
    """Say what is wrong with the loops of one function."""
    n_full, n_narrow, pattern = FMA[isa]
    n_fma = n_narrow if function in OF_NARROW else n_full
    loops = [
        loop
        for loop in inner_loops(instructions(path, function))
        if sum(bool(re.search(pattern, text)) for text in loop) >= n_fma
    ]
    if not loops:
        yield f"{path}: {function} has no loop with {n_fma} fused multiply-adds"
    for loop in loops:
        spills = [text for text in loop if re.search(STACK, text)]
        if spills:
            yield f"{path}: a loop of {function} uses the stack:\n  " + "\n  ".join(spills)


def main(paths):
    """Check all files; the exit code is 0 if there is nothing to complain about."""
    found = []
    for path in map(Path, paths):
        isa = path.stem.partition("_")[0]
        if isa not in FMA:
            sys.exit(f"{path}: expected an object file named after one of {', '.join(FMA)}")
        for function in FUNCTIONS + OF_NARROW + (OF_PAIRS if isa == "avx512" else ()):
            found += complaints(path, isa, function)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(paths)} object files: {len(found)} complaints")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
