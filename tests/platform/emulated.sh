#!/usr/bin/env bash
# The Python suite on a processor that this machine does not have, under user-mode emulation.
#
#     tests/platform/emulated.sh ARCHITECTURE [FOLDER [PYTEST-ARGUMENT ...]]
#
# ARCHITECTURE is Debian's name: arm64, ppc64el, riscv64, s390x (big endian), armhf, i386. Python,
# NumPy and pytest come from Debian 13 (or the SUITE in the environment), unpacked into the folder
# (once, 600 MB); for arm64 the newest NumPy and ml_dtypes come as wheels, which the others do not
# have. The compiled module is cross-compiled by zig cc. Without pytest arguments the tests are
# those named below, about 5 minutes of one core and the compiler's time; "tests" is the whole suite.
# Left out are the files that start processes all the time (each waits 5 s for NumPy), that repeat
# long calls (row invariance), and that compute the specification in Python.
#
# Needs debootstrap and root for it, qemu-user-static and, for python3 on the path, the packages
# cython and ziglang. No kernel support: a wrapper stands in for sys.executable, so that tests start
# children under the emulator too.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_tree=$(cd "$here/../.." && pwd)
architecture=${1:?"an architecture is missing: see the head of this file"}
folder=$(realpath -m "${2:-/tmp/fast-attention-$architecture}")
shift $(($# < 2 ? $# : 2))
default_tests=(tests/test_{golden,softmax_spec,results,numerics,softmax,nonfinite,errors,softmax_errors}.py)
packages=python3,python3-numpy,python3-pytest,python3-hypothesis,python3-dev,libc6-dev
debian=$folder/debian

case $architecture in
    arm64) zig=aarch64-linux-gnu qemu="qemu-aarch64-static -cpu neoverse-n1" ;;
    ppc64el) zig=powerpc64le-linux-gnu qemu=qemu-ppc64le-static ;;
    riscv64) zig=riscv64-linux-gnu qemu=qemu-riscv64-static ;;
    s390x) zig=s390x-linux-gnu qemu=qemu-s390x-static ;;
    armhf) zig=arm-linux-gnueabihf qemu=qemu-arm-static ;;
    i386) zig=x86-linux-gnu qemu=qemu-i386-static ;;
    *) echo "no such architecture: $architecture" >&2 && exit 2 ;;
esac

unpack_debian() {
    local deb
    debootstrap --foreign --variant=minbase --arch="$architecture" --include="$packages" \
        "${SUITE:-trixie}" "$debian" http://deb.debian.org/debian \
        /usr/share/debootstrap/scripts/sid >"$folder/debootstrap.log" ||
        { tail -n 3 "$folder/debootstrap.log" >&2 && return 1; }
    for deb in "$debian"/var/cache/apt/archives/*.deb; do
        dpkg-deb -x "$deb" "$debian"
    done
    # What Debian's alternatives would do. The slash: riscv64 has a link ld-linux-riscv64-lp64d.so.1.
    ln -srf "$debian"/usr/lib/*/{blas/libblas,lapack/liblapack}.so.3 -t "$(echo "$debian"/usr/lib/*-linux-*/)"
    rm -r "$debian/var/cache/apt/archives"
}

# The wheels of PyPI in front of Debian's packages, where there are some.
download_wheels() {
    local version
    [ "$architecture" = arm64 ] || return 0
    version=$(basename "$debian"/usr/include/python3.*)
    python3 -m pip install -q --upgrade --target "$folder/wheels" --python-version "${version#python}" \
        --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 \
        --only-binary=:all: numpy ml_dtypes
}

# Python takes its own name from argument 0: with the wrapper's, children start under qemu again.
write_wrapper() {
    cat >"$folder/python" <<WRAPPER
#!/bin/sh
export PYTHONHOME=$debian/usr
export PYTHONPATH="\${PYTHONPATH:-$folder/package:$folder/wheels:$debian/usr/lib/python3/dist-packages}"
exec $qemu -L $debian -0 $folder/python $(echo "$debian"/usr/bin/python3.*[0-9]) "\$@"
WRAPPER
    chmod +x "$folder/python"
}

build_package() {
    local include
    include=$(echo "$debian"/usr/include/python3.*)
    rm -rf "$folder/package"
    mkdir "$folder/package"
    cp -r "$source_tree/src/fast_attention" "$folder/package"
    find "$folder/package" -name '_native*.so' -delete
    python3 -m cython "$source_tree/attn_ext/_native.pyx" -o "$folder/_native.c"
    python3 -m ziglang cc -target "$zig.2.28" -shared -fPIC -O3 -std=c11 -ffp-contract=off \
        -fno-math-errno -fvisibility=hidden -DPy_LIMITED_API=0x030b0000 \
        -I "$source_tree/attn_ext" -I "$include" -idirafter "$debian/usr/include" \
        "$folder/_native.c" "$source_tree"/attn_ext/*.c "$source_tree"/attn_ext/isa/*.c \
        -o "$folder/package/fast_attention/_native.abi3.so"
}

run_suite() {
    rm -rf "$folder/elsewhere"
    mkdir "$folder/elsewhere"
    cp -r "$source_tree"/{pyproject.toml,tests,examples} "$folder/elsewhere"
    cd "$folder/elsewhere"
    ../python - <<'PYTHON'
import sys
import fast_attention
assert fast_attention.backend() == "native", fast_attention.backend()
print(f"{sys.byteorder}-endian", fast_attention.show_config(), sep="\n")
PYTHON
    ../python -m pytest "$@"
}

main() {
    mkdir -p "$folder"
    if [ ! -e "$folder/complete" ]; then # after a failure what was downloaded is not lost
        unpack_debian
        download_wheels
        touch "$folder/complete"
    fi
    write_wrapper
    build_package
    [ $# -gt 0 ] || set -- -q "${default_tests[@]}"
    run_suite "$@"
}

main "$@"; exit # on one line, so that an edit of this file meanwhile is not run
