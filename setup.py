"""Build the native extension, or with FAST_ATTENTION_BUILD=pure a package without it.

FAST_ATTENTION_BUILD=wide16 adds the test-only instruction set of that name, never for a release.

Metadata and tool settings are in pyproject.toml. The extension keeps to the stable ABI of
Python 3.11, so one wheel serves all later versions; free-threaded builds have no stable ABI
and get a wheel each, and so does each version on Android, where a module is linked with the
library of its Python (PEP 738). No flag here raises the instruction set above the compiler's
baseline (attn_ext/isa/ does that in marked regions, chosen at run time) or relaxes floating point.
A native build that fails, fails: there is no silent fall back to the package without it.
"""

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import chain
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

PACKAGE = Path("src/fast_attention")
THREADS = [] if sys.platform in ("win32", "emscripten") else ["-pthread"]
GCC_FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
GCC_FLAGS += ["-g1"]  # lines for a profiler: all that -g tells takes a third of the time
MSVC_FLAGS = ["/O2", "/std:c11", "/fp:precise"]
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED") and sys.platform != "android"


class NativeBuild(build_ext):
    """Compile with the flags of the compiler in use; generated C stays out of the sources."""

    def build_extensions(self):
        self.cython_c_in_temp = True
        flags = MSVC_FLAGS if self.compiler.compiler_type == "msvc" else GCC_FLAGS + THREADS
        for extension in self.extensions:
            extension.extra_compile_args = flags
        compile_files = self.compiler.compile

        def compile_each(sources, **options):
            """Compile on every processor: each file of kernels takes many seconds."""
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_files([source], **options), sources)
                return list(chain.from_iterable(objects))

        self.compiler.compile = compile_each
        super().build_extensions()

    def copy_extensions_to_source(self):
        """Install in place, without an older build that this Python would import instead."""
        for suffix in EXTENSION_SUFFIXES:
            (PACKAGE / f"_native{suffix}").unlink(missing_ok=True)
        super().copy_extensions_to_source()


class PureBuild(build_py):
    """Leave no extension of an earlier build in place where Python would find it."""

    def run(self):
        for built in [*PACKAGE.glob("_native*.so"), *PACKAGE.glob("_native*.pyd")]:
            built.unlink()
        super().run()


def native_arguments(with_wide16):
    macros = [("Py_LIMITED_API", "0x030b0000")] if STABLE_ABI else []
    if with_wide16:
        macros.append(("FA_WITH_WIDE16", "1"))
    extension = Extension(
        "fast_attention._native",
        ["attn_ext/_native.pyx", *sorted(glob("attn_ext/*.c") + glob("attn_ext/isa/*.c"))],
        include_dirs=["attn_ext"],
        depends=glob("attn_ext/**/*.h", recursive=True),
        define_macros=macros,
        extra_link_args=THREADS,
        py_limited_api=STABLE_ABI,
    )
    return {
        "ext_modules": [extension],
        "cmdclass": {"build_ext": NativeBuild},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
    }


build = os.environ.get("FAST_ATTENTION_BUILD") or "native"
if build not in ("native", "pure", "wide16"):
    sys.exit(f"FAST_ATTENTION_BUILD is {build!r}: expected 'native' or 'pure'")
if build == "pure":
    setup(cmdclass={"build_py": PureBuild})
else:
    setup(**native_arguments(with_wide16=build == "wide16"))
