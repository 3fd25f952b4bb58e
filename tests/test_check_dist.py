"""The check of distribution files refuses every fault that it looks for."""

import struct
import sys
import tarfile
import zipfile

import pytest
import support

pytest.importorskip("packaging", reason="extra: packaging")

import check_dist

VERSION = "fast_attention-1.0"
PURE = "py3-none-any"
LINUX = "cp311-abi3-manylinux_2_28_x86_64"
MAC = "cp311-abi3-macosx_11_0_arm64"
WASM_WHEEL = "cp311-abi3-pyodide_2025_0_wasm32"
LINUX_MODULE = "fast_attention/_native.abi3.so"
WASM = b"\0asm" + bytes(8)


def elf(machine, order="<"):
    return b"\x7fELF\x02" + (b"\1" if order == "<" else b"\2") + bytes(12) + struct.pack(
        f"{order}H", machine
    )  # fmt: skip


def mach_o(processor):
    return struct.pack("<II", 0xFEEDFACF, processor)


def pe(machine):
    return b"MZ" + bytes(58) + struct.pack("<I4sH", 64, b"PE\0\0", machine)


@pytest.fixture
def sources(tmp_path):
    package = tmp_path / "sources" / "src" / "fast_attention"
    package.mkdir(parents=True)
    for name in ("__init__.py", "py.typed", "_native.abi3.so"):
        (package / name).write_text("")
    return package.parents[1]


@pytest.fixture
def check(tmp_path, sources, monkeypatch):
    """Return a function that makes a wheel and checks it; faked modules need no libraries."""
    monkeypatch.setattr(check_dist, "elf_needs", lambda data: ([], None))
    monkeypatch.setattr(check_dist, "pe_needs", lambda data: [])

    def make(tag, added=(), left_out=(), stated=None):
        info = f"{VERSION}.dist-info"
        names = {f"{info}/{name}": b"" for name in check_dist.METADATA}
        names |= {"fast_attention/__init__.py": b"", "fast_attention/py.typed": b""}
        names[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nTag: {stated or tag}\n".encode()
        names |= dict(added)
        path = tmp_path / f"{VERSION}-{tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in names.keys() - set(left_out):
                archive.writestr(name, names[name])
        return check_dist.check_wheel(path, sources)

    return make


def test_pure_wheel_is_accepted(check):
    assert check(PURE) == "no native module"


@pytest.mark.parametrize(
    ("tag", "module", "data"),
    [
        (LINUX, "_native.abi3.so", elf(62)),
        ("cp311-abi3-musllinux_1_2_aarch64", "_native.abi3.so", elf(183)),
        ("cp311-abi3-manylinux_2_28_s390x", "_native.abi3.so", elf(22, ">")),
        ("cp314-cp314t-manylinux_2_39_riscv64", "_native.cpython-314t-x.so", elf(243)),
        ("cp313-cp313-android_24_arm64_v8a", "_native.cpython-313.so", elf(183)),
        (MAC, "_native.abi3.so", mach_o(0x0100000C)),
        ("cp311-abi3-ios_13_0_arm64_iphoneos", "_native.abi3.so", mach_o(0x0100000C)),
        ("cp311-abi3-win_amd64", "_native.pyd", pe(0x8664)),
        ("cp315-cp315t-win_arm64", "_native.cp315t-win_arm64.pyd", pe(0xAA64)),
        (WASM_WHEEL, "_native.abi3.so", WASM),
    ],
)
def test_native_wheel_with_the_right_module_is_accepted(check, tag, module, data):
    assert check(tag, {f"fast_attention/{module}": data})


@pytest.mark.parametrize(
    ("fault", "arguments"),
    [
        ("should not hold fast_attention/notes.txt", (PURE, {"fast_attention/notes.txt": b""})),
        ("should not hold tests/x.py", (PURE, {"tests/x.py": b""})),
        ("lacks fast_attention/py.typed", (PURE, (), ["fast_attention/py.typed"])),
        ("lacks .*LICENSE", (PURE, (), [f"{VERSION}.dist-info/licenses/LICENSE"])),
        ("WHEEL says py2-none-any", (PURE, (), (), "py2-none-any")),
        ("any platform", (PURE, {LINUX_MODULE: elf(62)})),
        ("expected one module", (LINUX,)),
        ("expected one module", (LINUX, {LINUX_MODULE: elf(62), "fast_attention/a.so": elf(62)})),
        ("expected one module", (LINUX, {"fast_attention/_native.cpython-311-x.so": elf(62)})),
        ("elf for .*aarch64.*x86_64", (LINUX, {LINUX_MODULE: elf(183)})),
        ("mach-o for .*x86_64.*arm64", (MAC, {LINUX_MODULE: mach_o(0x01000007)})),
        ("unknown format", (LINUX, {LINUX_MODULE: b"text, and more of it"})),
        ("expected wasm", (WASM_WHEEL, {LINUX_MODULE: elf(62)})),
    ],
)
def test_fault_of_a_wheel_is_found(check, fault, arguments):
    with pytest.raises(SystemExit, match=fault):
        check(*arguments)


@pytest.mark.parametrize(
    ("needs", "fault"),
    [
        ((["libc.so.6", "libgomp.so.1"], (2, 17)), "needs libgomp.so.1"),
        ((["libc.so.6"], (2, 34)), r"needs glibc 2.34, the tag says manylinux_2_28"),
    ],
)
def test_module_that_needs_more_than_its_tag_promises_is_found(check, monkeypatch, needs, fault):
    monkeypatch.setattr(check_dist, "elf_needs", lambda data: needs)
    with pytest.raises(SystemExit, match=fault):
        check(LINUX, {LINUX_MODULE: elf(62)})


@pytest.mark.skipif(sys.platform != "linux" or not support.native(), reason="reads an ELF module")
def test_needs_of_the_module_in_use_are_read():
    pytest.importorskip("elftools", reason="extra: packaging")
    with open(support.native().__file__, "rb") as file:
        libraries, glibc = check_dist.elf_needs(file.read())
    assert any(name.startswith("libc.") for name in libraries)
    assert glibc is None or (2, 2) <= glibc < (3, 0)


def test_source_archive_without_a_header_is_found(tmp_path, sources):
    (sources / "fa.h").write_text("")
    (sources / ".gitignore").write_text("")
    path = tmp_path / f"{VERSION}.tar.gz"
    names = ("PKG-INFO", "setup.cfg", "fa.h", "src/fast_attention/__init__.py",
             "src/fast_attention/py.typed", "src/fast_attention.egg-info/SOURCES.txt")  # fmt: skip
    for left_out in (None, "fa.h"):
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                if name != left_out:
                    archive.add(sources / "fa.h", f"{VERSION}/{name}")
        if left_out is None:
            assert check_dist.check_sdist(path, sources) == "5 files"
    with pytest.raises(SystemExit, match=r"lacks fa\.h"):
        check_dist.check_sdist(path, sources)
