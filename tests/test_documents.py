"""The reference has every public name."""

import re
from pathlib import Path

import pytest

import fast_attention

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "README.md").exists(), reason="no documents beside these tests"
)


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_reference_has_every_public_name():
    listed = re.findall(r"^   ([\w.]+)$", read("docs/reference.md"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(fast_attention.__all__) - {"__version__"} <= set(listed)
