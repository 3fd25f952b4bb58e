"""The documents lead to each other, and the reference has every public name."""

import re
from pathlib import Path

import pytest

import fast_attention

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)\s]*)?\)")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "attn_ext/README.md")

pytestmark = pytest.mark.skipif(
    not (ROOT / "README.md").exists(), reason="no documents beside these tests"
)


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_reference_has_every_public_name():
    listed = re.findall(r"^   ([\w.]+)$", read("docs/reference.md"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(fast_attention.__all__) - {"__version__"} <= set(listed)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files(name):
    for target in LINK.findall(read(name)):
        assert (ROOT / name).parent.joinpath(target).exists(), target


def test_readme_leads_to_the_other_documents():
    targets = set(LINK.findall(read("README.md")))
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "docs/platforms.md"} <= targets
    for folder in ("attn_ext", "benchmarks", "docs", "examples", "tests", "src/fast_attention"):
        assert f"| `{folder}/` |" in read("README.md")


def test_readme_of_the_core_names_every_file():
    text = read("attn_ext/README.md")
    core = ROOT / "attn_ext"
    for file in [*core.glob("*.[ch]"), *core.glob("kernels/*.h")]:
        is_generated = file.with_suffix(".pyx").exists()
        has_source = file.suffix == ".h" and file.with_suffix(".c").exists()  # named by that
        assert is_generated or has_source or f"{file.name}`" in text, file.name
