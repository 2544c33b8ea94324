"""pcp-opt: mlir-opt for StableHLO and pcp, with pcp's passes in the pipeline.

pcp-opt model.mlir --pcp-grad=func=main --cse
pcp-opt model.mlir --pass-pipeline='builtin.module(pcp-grad{func=main},cse)'
"""

import argparse
import re
import sys
from collections.abc import Sequence

from pcp.tools.support.command import Parser, run
from pcp.tools.support.expected import PROG, SEPARATOR


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def _main(argv: Sequence[str]) -> int:
    made = parser()
    options, words = made.parse_known_args([_two_dashes(word) for word in argv])
    from pcp.tools import extension  # --help needs no compiler
    from pcp.tools.support import opt_command

    extension.load_all(options.load)
    if options.list_passes:
        return opt_command.print_passes()
    if options.show_dialects:
        return opt_command.print_dialects()
    flags = list(made._option_string_actions)
    return opt_command.work(options, words, flags)


# --- the command line ---


LOAD = "an extension: dialects, passes and rules; again for more"
VERIFY_EACH = "verify after each pass (default: true)"
SWITCHES = {
    "split-input-file": f"work on each part between lines that say {SEPARATOR}",
    "verify-diagnostics": "check errors against // expected-error {{...}} comments",
    "mlir-print-ir-before-all": "print the IR before each pass",
    "mlir-print-ir-after-all": "print the IR after each pass",
    "mlir-print-ir-after-change": "print the IR after passes that changed it",
    "mlir-print-ir-after-failure": "print the IR that a failed pass left",
    "mlir-print-op-generic": "print ops in their generic form",
    "mlir-print-debuginfo": "print locations",
    "mlir-timing": "say how long each pass took",
    "emit-bytecode": "write bytecode",
    "allow-unregistered-dialect": "let ops of unknown dialects through",
    "list-passes": "print the known passes and stop",
    "show-dialects": "print the known dialects and stop",
}


def parser() -> Parser:
    """Its flags."""
    about = (__doc__ or "").strip().splitlines()
    parser = Parser(
        prog=PROG,
        description=about[0],
        example=about[-1].strip(),
        usage="%(prog)s [FILE|-] [-o OUT] [--<pass>[=key=value,...]]... [options]",
    )
    add = parser.add_argument
    add("file", nargs="?", default="-", help="MLIR text or bytecode; - is stdin")
    add("-o", dest="output", default="-", metavar="OUT", help="where to write")
    add("--pass-pipeline", metavar="TEXT", help="builtin.module(pass{key=value},...)")
    add("--verify-each", type=_bool, default=True, metavar="BOOL", help=VERIFY_EACH)
    add("--load", action="append", default=[], metavar="FILE.py", help=LOAD)
    for when in ("before", "after"):
        text = f"print the IR {when} these passes"
        names = {"type": _names, "default": [], "metavar": "PASS,..."}
        add(f"--mlir-print-ir-{when}", help=text, **names)
    for name, text in SWITCHES.items():
        add(f"--{name}", action="store_true", help=text)
    text = "leave out the contents of larger constants"
    add("--mlir-elide-elementsattrs-if-larger", type=int, metavar="N", help=text)
    return parser


def _two_dashes(word: str) -> str:
    """LLVM's tools take `-cse` for `--cse`, and `--verify-each` alone for true."""
    word = "-" + word if re.match(r"-[A-Za-z][\w-]", word) else word
    return word + "=true" if word == "--verify-each" else word


def _bool(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return values[text]


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
