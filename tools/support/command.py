"""What every command line shares: the parser, the error line, the exit code.

    def main(argv: Sequence[str] | None = None) -> int:
        return run("pcp-opt", _main, argv)

    def _main(argv: Sequence[str]) -> int | None:
        options = Parser(prog="pcp-opt", example="pcp-opt m.mlir").parse_args(argv)
        ...

Exit codes: 0 done, 1 a user's error, 2 wrong usage, 3 a worker that cannot work here,
130 interrupted, 143 terminated, 141 the reader of our output went away. A traceback is
shown only with `--debug`.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from pcp.errors import PcpError, UsageError, nearest
from pcp.runtime.transport.address import MAX_PORT
from pcp.training.process.parent_death import die_with_parent

INTERRUPTED = 130
BROKEN_PIPE = 141


class Stopped(KeyboardInterrupt):
    """A signal ended the command; what it says is printed on stderr."""

    def __init__(self, number: int, said: str = "") -> None:
        super().__init__(said)
        self.number = number


Work = Callable[[Sequence[str]], int | None]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `UsageError`s that name the nearest flag.

    `example` is shown at the end of `--help`. `--debug` is always there.
    """

    def __init__(self, *, prog: str, example: str = "", **options: Any) -> None:
        epilog = f"example:\n  {example}" if example else None
        super().__init__(
            prog=prog,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )
        self.add_argument(
            "--debug", action="store_true", help="show tracebacks of errors"
        )

    @classmethod
    def documented(cls, prog: str, text: str | None) -> Self:
        """A parser by a module's docstring, whose last paragraph is examples."""
        about, _, examples = (text or "").strip().rpartition("\n\n")
        example = examples.replace("\n", "\n  ")
        return cls(prog=prog, description=about, example=example)

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` in place of argparse's print and exit."""
        said = self._with_choices(message)
        raise UsageError(said + self._nearest_flag(message))

    def _with_choices(self, message: str) -> str:
        """The message; of words that are missing it says which there are."""
        before, missing, names = message.partition("arguments are required: ")
        if not missing:
            return message
        known = {a.dest: a.choices for a in self._actions if not a.option_strings}
        listed = [
            f"{name} ({', '.join(map(str, known[name] or ()))})"
            if known.get(name)
            else name
            for name in names.split(", ")
        ]
        return f"{before}{missing}{', '.join(listed)}"

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """argparse's check of `choices`, with the nearest of them."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += "." + nearest(str(value), map(str, action.choices or ()))
            raise

    def _nearest_flag(self, message: str) -> str:
        before, found, unknown = message.partition("unrecognized arguments: ")
        if not found or before:
            return f" (see {self.prog} --help)"
        flag = unknown.split()[0].partition("=")[0]
        known = [name for name in self._option_string_actions if len(name) > 2]
        return "." + nearest(flag, known) if flag.startswith("-") else ""


def port_number(text: str) -> int:
    """The type of a `--port`: 0 to 65535."""
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"expected 0 to {MAX_PORT}, not {text!r}")
    return int(text)


def run(prog: str, work: Work, argv: Sequence[str] | None = None) -> int:
    """Run `work(argv)` and turn what it raises into one line and an exit code.

    A command that another started ends with it: `pcp.training.process.parent_death`.
    """
    die_with_parent()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        code = work(arguments)
        sys.stdout.flush()
        return code or 0
    except SystemExit as stop:  # argparse's --help and --version
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Stopped as stop:
        if text := str(stop):
            print(f"{prog}: {text}", file=sys.stderr)
        return 128 + stop.number
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except PcpError as error:
        return report(prog, error, debug=debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(prog, f"{where}{error.strerror or error}", 1, debug)
    except Exception as error:
        kind = type(error).__name__
        hint = "this is a bug in pcp; --debug shows where"
        internal = f"internal error: {kind}: {error} ({hint})"
        return _fail(prog, internal, 1, debug, getattr(error, "__notes__", ()))


def report(prog: str, error: PcpError, *, debug: bool = False) -> int:
    """Print an error and its notes on stderr; returns its exit code."""
    notes = getattr(error, "__notes__", ())
    return _fail(prog, str(error), error.exit_code, debug, notes)


def _fail(
    prog: str, message: str, code: int, debug: bool, notes: Sequence[str] = ()
) -> int:
    if debug:
        traceback.print_exc()
    print(f"{prog}: error: {message}", file=sys.stderr)
    for note in notes:
        print(f"{prog}: note: {note}", file=sys.stderr)
    return code


def _silence_stdout() -> None:
    """Keep the interpreter from flushing into the closed pipe at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is no real file: nothing to silence
        pass
