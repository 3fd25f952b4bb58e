"""A program that uses the package is checked against the types of each overload."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="the types are read by mypy")

CALLS = Path(__file__).with_name("typed_calls.py")


def test_types_of_results_depend_on_what_is_asked_for(tmp_path):
    cache = ("--cache-dir", str(tmp_path))
    command = [sys.executable, "-m", "mypy", "--strict", *cache, "--config-file", "", str(CALLS)]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
