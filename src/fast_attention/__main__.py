"""The command line, ``python -m fast_attention``.

``compare`` measures the native kernels against the NumPy fallback; ``verify`` compares the bits of
results with the published ones; ``info`` prints what this installation runs and why. Run each with
``--help``.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import fast_attention

from . import _compare, _verify
from ._exit import FAILURE, INTERRUPTED, SUCCESS

EXAMPLES = """\
examples:
  python -m fast_attention info
  python -m fast_attention verify
  python -m fast_attention compare
  python -m fast_attention compare --help"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m fast_attention",
        description="Exact attention for NumPy arrays.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"fast_attention {fast_attention.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="{compare,verify,info}", required=True)
    compare = commands.add_parser(
        "compare",
        help="measure the native kernels against the NumPy fallback",
        description=_compare.DESCRIPTION,
        epilog=_compare.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _compare.add_arguments(compare)
    verify = commands.add_parser(
        "verify",
        help="compare the bits of results with the published ones",
        description=_verify.DESCRIPTION,
        epilog=_verify.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _verify.add_arguments(verify)
    commands.add_parser(
        "info",
        help="print backend, instruction set, threads and versions",
        description="Print backend and why, instruction set, threads and versions.",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments` (default: ``sys.argv``) and return the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        code = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as in `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _run(options: argparse.Namespace) -> int:
    if options.command == "compare":
        return _compare.run(options)
    return _verify.run(options) if options.command == "verify" else info()


def info() -> int:
    """Print the configuration and return the exit code."""
    print(fast_attention.show_config())
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
