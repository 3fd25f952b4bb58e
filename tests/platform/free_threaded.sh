#!/usr/bin/env bash
# The suite on a free-threaded CPython, every test in two threads at once.
#
#     tests/platform/free_threaded.sh [FOLDER [PYTEST-ARGUMENT ...]]
#
# Builds CPython 3.13 without the GIL from Debian's source package (10 to 20 minutes on one core,
# once for a folder), then builds and installs this package there with NumPy's own free-threaded
# wheel. Needs Debian or a relative with dpkg-dev, a C compiler and the headers of OpenSSL, zlib
# and libffi. Nothing outside of the folder is changed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(realpath -m "${1:-/tmp/fast-attention-free-threaded}")
shift || true
python=$folder/python/bin/python3.13t

# fetch_source: CPython's source as Debian packs it but without its patches, which look for modules
# where the system's Python has them. Lists of packages of our own leave the system's alone.
fetch_source() {
    local options=(
        -o "Dir::Etc::SourceList=$folder/sources.list"
        -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$folder/lists"
        -o "Dir::Cache=$folder/cache"
        -o APT::Sandbox::User=root
    )
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "http://deb.debian.org/debian trixie main" >"$folder/sources.list"
    apt-get "${options[@]}" -q update
    cd "$folder"
    apt-get "${options[@]}" -q source --download-only python3.13
    dpkg-source --no-check --skip-patches -x python3.13_*.dsc cpython
}

build_python() {
    fetch_source
    cd cpython
    ./configure -q --prefix="$folder/python" --disable-gil
    make -s -j "${JOBS:-1}" >"$folder/build.log" 2>&1
    make -s install >>"$folder/build.log" 2>&1
    cd "$folder"
    rm -r cpython
}

# The source tree is copied: a build in place would leave its module to the Python in use there.
install_package() {
    rm -rf "$folder/venv" "$folder/source"
    "$python" -m venv "$folder/venv"
    mkdir "$folder/source"
    git -C "$root" ls-files -z | tar -C "$root" --null -T - -c | tar -C "$folder/source" -x
    "$folder/venv/bin/pip" install -q --only-binary numpy,ml_dtypes,hypothesis \
        "$folder/source[test]" pytest-run-parallel
}

run_suite() {
    mkdir -p "$folder/elsewhere"
    cp -r "$folder"/source/{pyproject.toml,tests,examples} "$folder/elsewhere"
    cd "$folder/elsewhere"
    "$folder/venv/bin/python" -W error - <<'PYTHON'
import sys
import fast_attention
assert fast_attention.backend() == "native", fast_attention.backend()
assert not sys._is_gil_enabled(), "importing the package switched the GIL on"
print(sys.version, fast_attention.show_config(), sep="\n")
PYTHON
    PYTHONPATH=tests/platform "$folder/venv/bin/pytest" -p inherit_context --parallel-threads=2 "$@"
}

mkdir -p "$folder"
[ -x "$python" ] || build_python
install_package
run_suite "$@"
