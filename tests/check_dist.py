"""Check distribution files against the sources and against what their names promise.

``python tests/check_dist.py SOURCES FILE ...`` exits with the first fault found:

- a wheel holds the package's own files and no others; one native module if its tag names a
  platform, none if it is ``any``; the module is for the processor, the glibc and the ABI of the
  tag, and needs no library that is not part of the system;
- a source archive holds every file that a build or a test run needs.
"""

import re
import struct
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

from packaging.tags import parse_tag
from packaging.utils import parse_wheel_filename

METADATA = {"METADATA", "RECORD", "WHEEL", "top_level.txt", "licenses/LICENSE"}
NOT_PACKAGED = {".ci", ".git", ".github", ".gitignore", "build", "dist"}
PROCESSORS = {
    "elf": {"x86_64": 62, "aarch64": 183, "arm64_v8a": 183, "riscv64": 243, "ppc64le": 21,
            "s390x": 22},
    "mach-o": {"x86_64": 0x01000007, "arm64": 0x0100000C},
    "pe": {"amd64": 0x8664, "arm64": 0xAA64},
}  # fmt: skip
SYSTEM_LIBRARIES = {
    "elf": r"lib(c|m|pthread|dl)\.so(\.\d+)?|libc\.musl-\w+\.so\.1|ld(64|-linux|-musl)[\w.-]*\.so.*"
    r"|libpython3\.\d+\.so",  # the last on Android alone
    "pe": r"(?i)(python3|python3\d+t?|kernel32|vcruntime140|api-ms-win-[\w-]+|ucrtbase)\.dll",
}


def fail(path, fault):
    """End with one line that says which file is wrong, and how."""
    sys.exit(f"{Path(path).name}: {fault}")


def compare_names(path, expected, found):
    """Fail if the file lacks something or holds something that does not belong there."""
    if missing := sorted(expected - found):
        fail(path, f"lacks {', '.join(missing)}")
    if stray := sorted(found - expected):
        fail(path, f"should not hold {', '.join(stray)}")


def files_below(folder):
    """Give the files below a folder, by their names within it, without what builds leave."""
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix()
        for name in names
        if name.suffix not in (".so", ".pyd", ".pyc")
        and not any(re.search(r"^__pycache__$|\.egg-info$", part) for part in name.parts)
    }


def native_name(tag):
    """Give the pattern of the name that a native module has under a tag."""
    if tag.platform.startswith("win"):
        middle = "" if tag.abi == "abi3" else rf"\.{tag.abi}-{tag.platform}"
        return rf"fast_attention/_native{middle}\.pyd"
    middle = "abi3" if tag.abi == "abi3" else rf"cpython-{tag.abi.removeprefix('cp')}[\w-]*"
    return rf"fast_attention/_native\.{middle}\.so"


def file_format(data):
    """Give the format of a native module by its first bytes, and its processor."""
    if data[:4] == b"\x7fELF":
        order = "<" if data[5] == 1 else ">"
        return "elf", struct.unpack_from(f"{order}H", data, 18)[0]
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return "mach-o", struct.unpack_from("<I", data, 4)[0]
    if data[:2] == b"MZ":
        header = struct.unpack_from("<I", data, 60)[0]
        return "pe", struct.unpack_from("<H", data, header + 4)[0]
    return ("wasm", None) if data[:4] == b"\0asm" else ("an unknown format", None)


def check_processor(path, tag, data):
    """Fail if the module is for another processor than the tag says; give its format."""
    kind, processor = file_format(data)
    if tag.platform.endswith("wasm32"):
        if kind != "wasm":
            fail(path, f"holds a module in {kind}, expected wasm")
        return kind
    names = [name for name, number in PROCESSORS.get(kind, {}).items() if number == processor]
    platform = re.sub("_iphone(os|simulator)$", "", tag.platform)
    if not any(platform.endswith(f"_{name}") for name in names):
        fail(path, f"holds a module in {kind} for {names or processor}, the tag says {platform}")
    return kind


def elf_needs(data):
    """Give the libraries that an ELF module needs, and its highest glibc symbol version."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(BytesIO(data))
    dynamic = elf.get_section_by_name(".dynamic")
    libraries = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
    needed = elf.get_section_by_name(".gnu.version_r")
    words = [] if needed is None else [a.name for _, names in needed.iter_versions() for a in names]
    versions = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", word) for word in words]
    return libraries, max(((int(v[1]), int(v[2])) for v in versions if v), default=None)


def pe_needs(data):
    """Give the libraries that a Windows module needs."""
    import pefile

    return [entry.dll.decode() for entry in pefile.PE(data=data).DIRECTORY_ENTRY_IMPORT]


def check_native(path, tag, data):
    """Fail if the module does not keep what the tag promises; tell what it needs."""
    kind = check_processor(path, tag, data)
    libraries, glibc = [], None
    if kind == "elf":
        libraries, glibc = elf_needs(data)
    elif kind == "pe":
        libraries = pe_needs(data)
    foreign = [name for name in libraries if not re.fullmatch(SYSTEM_LIBRARIES[kind], name)]
    if foreign:
        fail(path, f"needs {', '.join(foreign)}, which not every system has")
    promised = re.match(r"manylinux_(\d+)_(\d+)_", tag.platform)
    if promised and glibc and glibc > (int(promised[1]), int(promised[2])):
        fail(path, f"needs glibc {glibc[0]}.{glibc[1]}, the tag says {tag.platform}")
    if not promised and glibc and not tag.platform.startswith("linux_"):
        fail(path, f"needs glibc, the tag says {tag.platform}")
    return f"{kind}, glibc {'.'.join(map(str, glibc)) if glibc else 'none'}, {libraries}"


def check_wheel(path, sources):
    """Check one wheel; tell what was found."""
    name, version, _, tags = parse_wheel_filename(path.name)
    with zipfile.ZipFile(path) as archive:
        found = {item for item in archive.namelist() if not item.endswith("/")}
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        stated = re.findall(r"^Tag: (\S+)$", archive.read(f"{info}/WHEEL").decode(), re.M)
        if frozenset().union(*map(parse_tag, stated)) != tags:
            fail(path, f"WHEEL says {', '.join(stated)}")
        expected = files_below(sources / "src") | {f"{info}/{item}" for item in METADATA}
        found -= {item for item in found if item.startswith(f"{info}/sboms/")}
        native = {item for item in found if item.endswith((".so", ".pyd"))}
        compare_names(path, expected, found - native)
        tag = min(tags, key=lambda tag: [int(n) for n in re.findall(r"\d+", tag.platform)])
        if tag.platform == "any":
            if native:
                fail(path, f"is for any platform and should not hold {', '.join(native)}")
            return "no native module"
        if len(native) != 1 or not re.fullmatch(native_name(tag), *native):
            fail(path, f"expected one module {native_name(tag)}, found {sorted(native)}")
        return check_native(path, tag, archive.read(native.pop()))


def check_sdist(path, sources):
    """Check a source archive; tell what was found."""
    with tarfile.open(path) as archive:
        found = {item.name.partition("/")[2] for item in archive.getmembers() if item.isfile()}
    names = files_below(sources)
    expected = {name for name in names if name.partition("/")[0] not in NOT_PACKAGED}
    found = {name for name in found if ".egg-info/" not in name}
    compare_names(path, expected | {"PKG-INFO", "setup.cfg"}, found)
    return f"{len(found)} files"


def main():
    """Check every file given."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sources = Path(sys.argv[1])
    for path in map(Path, sys.argv[2:]):
        check = check_wheel if path.suffix == ".whl" else check_sdist
        print(f"{path.name}: {check(path, sources)}")


if __name__ == "__main__":
    main()
