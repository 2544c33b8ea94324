"""The error line and exit code every command shares."""

import subprocess
import sys

import pytest
from helpers.present import present

from pcp.errors import IRError, UsageError
from pcp.tools.support.command import Parser, Stopped, port_number, run


def _raises(error: BaseException):
    def work(argv):
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (IRError("m.mlir:3:1: no such op"), 1, "x: error: m.mlir:3:1: no such op\n"),
        (UsageError("no such flag"), 2, "x: error: no such flag\n"),
        (KeyboardInterrupt(), 130, ""),
        (Stopped(15), 143, ""),
        (Stopped(2, "stopped; more"), 130, "x: stopped; more\n"),
        (
            FileNotFoundError(2, "No such file or directory", "m.mlir"),
            1,
            "x: error: m.mlir: No such file or directory\n",
        ),
        (SystemExit(0), 0, ""),
    ],
)
def test_an_error_is_one_line_and_a_code(capsys, error, code, line):
    assert run("x", _raises(error), []) == code
    assert capsys.readouterr().err == line


def test_a_bug_says_so_and_debug_shows_the_traceback(capsys):
    assert run("x", _raises(TypeError("oops")), []) == 1
    quiet = capsys.readouterr().err
    assert "internal error: TypeError: oops" in quiet
    assert "Traceback" not in quiet
    assert run("x", _raises(TypeError("oops")), ["--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_code_of_the_work_is_the_code_of_the_command():
    assert run("x", lambda argv: None, []) == 0
    assert run("x", lambda argv: len(argv), ["a", "b", "c"]) == 3


def _parser() -> Parser:
    parser = Parser(prog="x", example="x --verify-each")
    parser.add_argument("--verify-each", action="store_true")
    parser.add_argument("--jobs", type=int)
    return parser


def test_an_unknown_flag_names_the_nearest():
    with pytest.raises(UsageError, match="Did you mean '--verify-each'"):
        _parser().parse_args(["--verify-eech"])


def test_a_bad_value_points_at_help():
    with pytest.raises(UsageError, match=r"invalid int value: 'two' \(see x --help\)"):
        _parser().parse_args(["--jobs", "two"])


@pytest.mark.parametrize("text", ["65536", "99999", "-1", "http"])
def test_a_port_is_one(text):
    parser = Parser(prog="x")
    parser.add_argument("--port", type=port_number)
    assert parser.parse_args(["--port", "65535"]).port == 65535
    with pytest.raises(UsageError, match=f"--port: expected 0 to 65535, not '{text}'"):
        parser.parse_args([f"--port={text}"])


def test_help_shows_the_example(capsys):
    assert run("x", lambda argv: _parser().parse_args(argv) and 0, ["--help"]) == 0
    assert "example:\n  x --verify-each" in capsys.readouterr().out


def test_a_closed_pipe_is_quiet():
    script = (
        "import sys; from pcp.tools.support.command import run\n"
        "sys.exit(run('x', lambda a: [print('y' * 100) for _ in range(9999)] and 0))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = present(child.stdout), present(child.stderr)
    try:
        out.read(10)
        out.close()
        error = err.read()
        assert child.wait(30) == 141
    finally:
        err.close()
        child.kill()
        child.wait()
    assert error == b""
