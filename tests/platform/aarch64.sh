#!/usr/bin/env bash
# The Python tests on aarch64, with the NEON kernels, under qemu-user.
#
#     tests/platform/aarch64.sh [PYTEST ARGUMENT...]     by default the golden digests and more
#
# Unpacks Debian's Python and packages for aarch64, cross-compiles the extension with Zig and runs
# pytest in the emulator. About 15 minutes, 700 MB in a temporary directory; with TREE=DIRECTORY
# the unpacked system is kept there for the next run. On Debian it needs, as root: debootstrap
# qemu-user-static, and a Python with cython and ziglang (PYTHON, by default python3).
set -euo pipefail

python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
tree=${TREE:-$scratch/tree}
trap 'rm -rf "$scratch"' EXIT
default_tests=(test_golden.py test_softmax_spec.py test_results.py test_row_invariance.py)

unpack_debian() {
    local package
    [ ! -e "$tree/complete" ] || return 0
    debootstrap --foreign --arch=arm64 --variant=minbase \
        --include=python3,python3-dev,libc6-dev bookworm "$tree" >"$scratch/log" ||
        (tail "$scratch/log" && false)
    for package in "$tree"/var/cache/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$tree"
    done
    "$python" -m pip install -q --target "$tree/packages" --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 \
        --only-binary=:all: numpy ml_dtypes "pytest>=8" hypothesis
    touch "$tree/complete"
}

# The sources beside the tree, so that an installation in $root is left alone.
build_extension() {
    mkdir "$scratch/source"
    tar -C "$root" -c --exclude=__pycache__ --exclude='*.so' --exclude=_native.c src attn_ext tests pyproject.toml |
        tar -C "$scratch/source" -x
    cd "$scratch/source"
    "$python" -m cython -3 attn_ext/_native.pyx -o "$scratch/_native.c"
    "$python" -m ziglang cc -target aarch64-linux-gnu.2.28 -shared -fPIC -pthread \
        -O3 -std=c11 -ffp-contract=off -fno-math-errno -fvisibility=hidden \
        -DPy_LIMITED_API=0x030b0000 -I attn_ext -I "$tree/usr/include/python3.11" \
        -idirafter "$tree/usr/include" "$scratch/_native.c" attn_ext/*.c attn_ext/isa/*.c \
        -o src/fast_attention/_native.abi3.so
}

in_emulator() {
    PYTHONPATH="$scratch/source/src:$tree/packages" PYTHONDONTWRITEBYTECODE=1 \
        qemu-aarch64-static -cpu neoverse-n1 -L "$tree" "$tree/usr/bin/python3.11" "$@"
}

unpack_debian
build_extension
in_emulator -c 'from fast_attention import show_config; print(show_config())'
cd tests
if [ $# -gt 0 ]; then
    in_emulator -m pytest -q -p no:cacheprovider "$@"
else
    in_emulator -m pytest -q -p no:cacheprovider "${default_tests[@]}"
fi
