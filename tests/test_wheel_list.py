"""Which wheels a release has: what cibuildwheel makes of its table in pyproject.toml."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("cibuildwheel", reason="extra: packaging")

ROOT = Path(__file__).resolve().parents[1]
LINUX = ("x86_64", "aarch64", "riscv64", "ppc64le", "s390x")
APPLE = ("arm64_iphoneos", "arm64_iphonesimulator", "x86_64_iphonesimulator")
DESKTOP = ("cp311", "cp314t", "cp315t")  # the stable ABI, and each free-threaded version
WHEELS = {
    "linux": (DESKTOP, [f"{libc}linux_{a}" for libc in ("many", "musl") for a in LINUX]),
    "macos": (DESKTOP, ["macosx_arm64", "macosx_x86_64"]),
    "windows": (DESKTOP, ["win_amd64", "win_arm64"]),
    "pyodide": (["cp313", "cp314"], ["pyodide_wasm32"]),
    "ios": (["cp313"], [f"ios_{a}" for a in APPLE]),
    "android": (["cp313", "cp314", "cp315"], ["android_arm64_v8a", "android_x86_64"]),
}


@pytest.mark.parametrize("platform", WHEELS)
def test_every_platform_has_exactly_the_wheels_intended(platform):
    options = ["--platform", platform, "--print-build-identifiers", str(ROOT)]
    command = [sys.executable, "-m", "cibuildwheel", *options]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    expected = ["-".join(pair) for pair in product(*WHEELS[platform])]
    assert sorted(child.stdout.split()) == sorted(expected)
