"""Faults that other packages had when they were built: missing files, hidden needs and failures.

`.ci/run` builds and installs for real.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("attn_ext", "src", "tests", "examples")
BUILT = shutil.ignore_patterns(
    "__pycache__", ".*", "*.so", "*.pyd", "*.egg-info", "build", "_native.c"
)

sources = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="no sources beside the tests")


def case(*arguments, id):
    return pytest.param(*arguments, id=id)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Give a copy of the sources, without anything built."""
    target = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=BUILT)
    for path in [*ROOT.glob("*.py"), *ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.in")]:
        shutil.copy(path, target)
    shutil.copy(ROOT / "LICENSE", target)
    shutil.copy(ROOT / ".clang-format", target)
    return target


def setup(checkout, *arguments, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FAST_ATTENTION_")}
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *arguments],
        cwd=checkout, env=kept | environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def files_of(checkout):
    return {
        str(path.relative_to(checkout))
        for name in FOLDERS
        for path in (checkout / name).rglob("*")
        if path.is_file() and ".egg-info" not in str(path)
    }


@sources
@pytest.mark.parametrize("folder", [case("sdist", id="K09")])
def test_source_archive_holds_all_sources_and_each_header_they_include(checkout, tmp_path, folder):
    expected = files_of(checkout)
    done = setup(checkout, "sdist", "-d", str(tmp_path / folder))
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / folder).glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        tar.extractall(tmp_path, filter="data")
    assert expected <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyd", ".o", ".pyc"))]
    unpacked = next(path for path in tmp_path.iterdir() if path.name != folder)
    for file in [*unpacked.glob("attn_ext/**/*.[ch]"), *unpacked.glob("attn_ext/*.pyx")]:
        for header in re.findall(r'(?:#include|cdef extern from) "([^"]+)"', file.read_text()):
            assert header == "Python.h" or any(
                (folder / header).exists() for folder in (file.parent, unpacked / "attn_ext")
            ), f"{file.name} includes {header}"


@sources
@pytest.mark.parametrize("step", [case("version", id="K10-version"), case("build", id="K10-build")])
def test_build_does_not_import_numpy(checkout, tmp_path, step):
    """The compiler stops a build that has come as far as to compile."""
    (tmp_path / "numpy.py").write_text("raise ImportError('numpy is not there')")
    environment = {"PYTHONPATH": str(tmp_path), "CC": shutil.which("false") or "false"}
    command = ["--version"] if step == "version" else ["build_ext"]
    done = setup(checkout, *command, **environment)
    assert "numpy is not there" not in done.stderr
    assert (done.returncode == 0) == (step == "version"), done.stderr
    requires = re.search(r"requires = \[.*?\]", (ROOT / "pyproject.toml").read_text()).group()
    assert "setuptools" in requires
    assert "numpy" not in requires


@sources
@pytest.mark.parametrize("package", [case("cython", id="K13")])
def test_next_major_version_of_the_compiler_does_not_change_the_build(package):
    """Bounds on both sides, and of every C function it is said what an exception does."""
    needed = re.search(r"requires = \[.*?\]", (ROOT / "pyproject.toml").read_text()).group()
    assert re.search(rf'"{package}>=3[\d.]*,<4"', needed)
    source = (ROOT / "attn_ext/_native.pyx").read_text()
    functions = re.findall(r"^ *cdef [^=:(\n]*\([^()]*\)[^\n]*:$", source, re.M)
    for block in re.findall(r"^cdef extern from .*?(?=\n\n\n)", source, re.M | re.S):
        functions += re.findall(r"^ .*\(.*", block, re.M)
    assert len(functions) > 20
    for text in functions:
        assert re.search(r"\) (noexcept|except)\b", text), text


@sources
@pytest.mark.skipif(sys.platform == "win32", reason="no variable names the compiler there")
@pytest.mark.parametrize(
    "command", [case("build_ext", id="K11"), case("bdist_wheel", id="K11-whl")]
)
def test_compiler_that_fails_fails_the_build(checkout, tmp_path, command):
    where = [] if command == "build_ext" else ["-d", str(tmp_path)]
    done = setup(checkout, command, *where, CC="false")
    assert done.returncode != 0
    assert "'false'" in done.stderr
    assert not list(tmp_path.iterdir())


@sources
@pytest.mark.parametrize("kind", [case("pure", id="K11-pure")])
def test_build_without_the_compiled_module_needs_no_compiler(checkout, tmp_path, kind):
    target = tmp_path / "lib"
    arguments = ["build", "--build-lib", str(target), "--build-base", str(tmp_path / "base")]
    done = setup(checkout, *arguments, CC="false", FAST_ATTENTION_BUILD=kind)
    assert done.returncode == 0, done.stderr
    assert (target / "fast_attention" / "py.typed").exists()
    assert not list(target.rglob("*.so"))
    code = "import fast_attention as f; print(f.backend(), f.show_config()['backend_reason'])"
    child = support.run_python(code, PYTHONPATH=os.pathsep.join([str(target), *sys.path]))
    assert child.stdout.startswith("numpy this is a pure install"), child.stderr


def has_numpy_api(path):
    """Tell whether a binary asks NumPy for its table of C functions."""
    return b"_ARRAY_API" in Path(path).read_bytes()


@pytest.mark.skipif(support.native() is None, reason="pure installation")
@pytest.mark.parametrize("module", [case("_native", id="K05")])
def test_compiled_module_keeps_off_the_c_interface_of_numpy(module):
    assert support.native().__name__.endswith(module)
    assert has_numpy_api(importlib.util.find_spec("numpy.random.mtrand").origin)
    assert not has_numpy_api(support.native().__file__)


@sources
@pytest.mark.skipif(support.native() is None, reason="pure installation")
@pytest.mark.parametrize("folder", [case("attn_ext", id="K07")])
def test_compiled_module_in_place_is_as_new_as_its_sources(folder):
    """An editable install does not compile again by itself: `pip install -e .` after a change."""
    built = Path(support.native().__file__)
    if ROOT not in built.parents:
        pytest.skip("the package is not installed in place")
    compiled = (path for path in (ROOT / folder).rglob("*") if path.suffix in (".c", ".h", ".pyx"))
    newest = max(compiled, key=lambda path: path.stat().st_mtime)
    assert newest.stat().st_mtime <= built.stat().st_mtime, f"{newest.name}: pip install -e ."


@sources
@pytest.mark.parametrize("word", [case("alloca", id="R08")])
def test_core_takes_no_memory_of_variable_size_from_the_stack(word):
    """Arrays of variable length are refused by the compiler (-Wvla in tests/c/run.py)."""
    for path in (ROOT / "attn_ext").rglob("*.[ch]"):
        assert not re.search(rf"\b_?{word}\b|__builtin_{word}", path.read_text()), path.name
    assert "-Wvla" in (ROOT / "tests/c/run.py").read_text()
