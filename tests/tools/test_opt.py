"""pcp-opt as a user meets it: every flag, every mistake."""

import io
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pcp.compiler import catalog
from pcp.tools.opt import main
from pcp.tools.support.opt_command import flag_options

MODEL = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  %1 = stablehlo.add %a, %a : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
BAD_PLAN = """// -- a plan without its mesh
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m}
    : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
TWO = MODEL + "// -----\n" + MODEL.replace("@main", "@other")


@pytest.fixture
def opt(tmp_path, capsys, monkeypatch):
    """Run pcp-opt on a text; gives exit code, stdout, stderr."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for reproducers

    def run(text, *flags):
        path = tmp_path / "in.mlir"
        if isinstance(text, str):
            text = text.encode()
        path.write_bytes(text)
        code = main([str(path), *flags])
        out, err = capsys.readouterr()
        return code, out, err.replace(str(path), "in.mlir")

    return run


def passes(opt, *flags):
    code, out, err = opt(MODEL, *flags)
    assert (code, err) == (0, "")
    return out


# --- passes ---


def test_without_flags_it_prints_what_it_read(opt):
    assert passes(opt).count("stablehlo.add") == 2


@pytest.mark.parametrize(
    "flags",
    [
        ["--cse"],
        ["-cse"],
        ["--canonicalize", "--cse", "--pcp-verify-plan"],
        ["--canonicalize=max-iterations=3,top-down=true", "--cse"],
        ["--pass-pipeline=builtin.module(func.func(cse,canonicalize))"],
        ["--pass-pipeline", "builtin.module(pcp-verify-plan,cse)"],
        ["--pass-pipeline=cse"],
        ["--verify-each", "--cse"],
        ["--verify-each=false", "-cse", "-verify-each=0"],
        ["--cse", "--chlo-legalize-to-stablehlo"],  # one that runs on functions
    ],
)
def test_passes_run(opt, flags):
    assert passes(opt, *flags).count("stablehlo.add") == 1


def test_passes_run_in_the_order_of_the_command_line(opt):
    code, _, err = opt(
        MODEL, "--cse", "--pcp-verify-plan", "--canonicalize", "--mlir-timing"
    )
    assert code == 0
    assert re.findall(r"\)  (\S+)", err) == [
        "cse",
        "pcp-verify-plan",
        "canonicalize",
        "Total",
    ]


def test_flag_options_take_commas_inside_values():
    assert flag_options("func=main,wrt=0,2,name=g") == "func=main wrt=0,2 name=g"
    assert flag_options("optimizer=adamw{lr=6e-4,eps=1e-8},bucket=true") == (
        "optimizer=adamw{lr=6e-4,eps=1e-8} bucket=true"
    )
    assert flag_options("a=1 b=2") == "a=1 b=2"
    assert flag_options("") == ""


# --- input and output ---


def test_stdin_is_the_default(monkeypatch, capsys):
    for argv in ([], ["-"]):
        stdin = io.TextIOWrapper(io.BytesIO(MODEL.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(argv) == 0
        assert "func.func @main" in capsys.readouterr().out


def test_output_goes_to_a_file(opt, tmp_path):
    out = tmp_path / "out.mlir"
    assert passes(opt, "-o", str(out)) == ""
    assert "func.func @main" in out.read_text()


def test_a_failure_writes_no_file(opt, tmp_path):
    out = tmp_path / "out.mlir"
    assert opt(BAD_PLAN, "--pcp-verify-plan", "-o", str(out))[0] == 1
    assert not out.exists()


def test_bytecode_reads_back(opt, tmp_path):
    out = tmp_path / "out.mlirbc"
    passes(opt, "--emit-bytecode", "-o", str(out))
    assert out.read_bytes()[:4] == b"ML\xefR"
    code, text, _ = opt(out.read_bytes(), "--cse")
    assert code == 0
    assert text.count("stablehlo.add") == 1


def test_generic_form_and_locations(opt):
    assert '"stablehlo.add"(%arg0, %arg0)' in passes(opt, "--mlir-print-op-generic")
    assert "loc(" in passes(opt, "--mlir-print-debuginfo")


def test_large_constants_can_be_elided(opt):
    text = "func.func @f() { %0 = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>"
    code, out, _ = opt(text + " return }", "--mlir-elide-elementsattrs-if-larger=2")
    assert code == 0
    assert "1, 2, 3" not in out


# --- split input and diagnostics ---


def test_split_input_runs_each_part(opt):
    code, out, _ = opt(TWO, "--split-input-file", "--cse")
    assert code == 0
    first, second = out.split("// -----\n")
    assert "@main" in first
    assert "@other" in second


def test_split_input_keeps_the_line_numbers_of_the_file(opt):
    code, out, err = opt(MODEL + "// -----\nfoo\n", "--split-input-file")
    assert code == 1
    assert "@main" in out
    assert err.startswith("pcp-opt: error: in.mlir:8:1: ")


EXPECTED = """// expected-error@below {{has 0 operands, but enclosing function}}
func.func @f() -> i32 { return }
// -----
func.func private @f() // expected-note {{see existing symbol}}
func.func private @f() // expected-error {{redefinition}}
// -----
func.func @f() {
  // expected-error@+1 {{custom op 'foo' is unknown}}
  foo
}
// -----
// expected-error-re@below {{names axis "t{{[a-z]}}", which}}
func.func private @g()
"""


def test_expected_diagnostics_are_matched(opt):
    text = EXPECTED.rpartition("// -----")[0]
    code, _, err = opt(text, "--split-input-file", "--verify-diagnostics")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (EXPECTED, ['12: expected error "names axis "t{{[a-z]}}", which" was not']),
        (
            "func.func @f() -> i32 { return }",
            ["1: unexpected error: 'func.return' op has 0 operands"],
        ),
        (
            "// expected-error@below {{nonsense}}\nfunc.func @f() -> i32 { return }",
            [
                "2: unexpected error: 'func.return' op has 0",
                '1: expected error "nonsense" was not produced',
            ],
        ),
        (
            "// expected-warning@below {{has 0 operands}}\n"
            "func.func @f() -> i32 { return }",
            ["2: unexpected error", '1: expected warning "has 0 operands"'],
        ),
        (
            "// expected-error@unknown {{has 0 operands}}\n"
            "func.func @f() -> i32 { return }",
            ["2: unexpected error", '1: expected error "has 0 operands"'],
        ),
    ],
)
def test_what_does_not_match_is_told(opt, text, problems):
    code, _, err = opt(text, "--split-input-file", "--verify-diagnostics")
    assert code == 1
    lines = err.splitlines()
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"in.mlir:{problem}")


def test_errors_of_passes_are_expected_too(opt):
    text = BAD_PLAN.replace("  %0", "  // expected-error@below {{no pcp.mesh}}\n  %0")
    assert opt(text, "--pcp-verify-plan", "--verify-diagnostics")[0] == 0
    pattern = text.replace("error@below {{no pcp.mesh", "error-re@below {{no {{p.*}}sh")
    assert opt(pattern, "--pcp-verify-plan", "--verify-diagnostics")[0] == 0
    wrong = text.replace("no pcp.mesh", "no pcp.mash")
    assert opt(wrong, "--pcp-verify-plan", "--verify-diagnostics")[0] == 1


def test_a_misspelt_comment_is_an_error(opt):
    code, _, err = opt("// expect-eror {{x}}\n" + MODEL, "--verify-diagnostics")
    assert code == 1
    assert err == "in.mlir:1: not a directive: // expect-eror {{x}}\n"


# --- what a user gets wrong ---


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--csee"], 2, "no pass named 'csee'. Did you mean 'cse'?"),
        (["--pcp-verify-plam"], 2, "no pass named 'pcp-verify-plam'. Did you mean"),
        (["--verify-ech"], 2, "no pass or flag '--verify-ech'. Did you mean '--ver"),
        (["--verify-each=maybe"], 2, "'maybe' is not true or false"),
        (["--pass-pipeline=builtin.module(cannonicalize)"], 1, "'canonicalize'?"),
        (["--pass-pipeline=cse,("], 1, "unbalanced brackets in the pipeline 'cse,('"),
        (["--pass-pipeline=func.func(pcp-verify-plan)"], 1, "write it at the top lev"),
        (["--pass-pipeline=cse", "--cse"], 2, "cannot both be given"),
        (["--cse=x=1"], 2, "no such option x"),
        (["--pcp-verify-plan=x=1"], 2, "unknown option 'x' (options: none)"),
        (["other.mlir"], 2, "unexpected argument 'other.mlir'"),
    ],
)
def test_a_wrong_command_line_says_what_is_meant(opt, flags, code, message):
    got, out, err = opt(MODEL, *flags)
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "in.mlir: empty input, there is no program to read"),
        (
            b"func.func @f() {\n  retun\n}\n",
            "in.mlir:2:3: custom op 'retun' is unknown",
        ),
        (b"\xff\xfe", "in.mlir:1: neither MLIR text nor MLIR bytecode"),
        (b'"foo.bar"() : () -> ()', "in.mlir:1:10: operation being parsed with an unr"),
    ],
)
def test_bad_input_is_one_clear_line(opt, content, message):
    code, out, err = opt(content)
    assert (code, out) == (1, "")
    assert err.startswith(f"pcp-opt: error: {message}")
    assert err.count("\n") == 1


def test_a_missing_file_is_one_clear_line(capsys):
    assert main(["no-such.mlir"]) == 1
    expected = "pcp-opt: error: no-such.mlir: No such file or directory\n"
    assert capsys.readouterr().err == expected


def test_unregistered_dialects_only_when_asked(opt):
    text = '"foo.bar"() : () -> ()'
    assert opt(text)[0] == 1
    assert opt(text, "--allow-unregistered-dialect")[0] == 0


# --- what a developer wants to see ---


@pytest.mark.parametrize(
    ("flag", "titles"),
    [
        ("--mlir-print-ir-after=cse", ["After cse"]),
        ("--mlir-print-ir-before=cse,canonicalize", ["Before cse", "Before canon"]),
        ("--mlir-print-ir-after-all", ["After cse", "After canon"]),
        ("--mlir-print-ir-before-all", ["Before cse", "Before canon"]),
        ("--mlir-print-ir-after-change", ["After cse"]),
    ],
)
def test_the_ir_is_printed_around_passes(opt, flag, titles):
    code, _, err = opt(MODEL, "--cse", "--canonicalize", flag)
    assert code == 0
    found = re.findall(r"IR Dump (.*) //----- //", err)
    assert len(found) == len(titles)
    for got, title in zip(found, titles, strict=True):
        assert got.startswith(title)


def test_a_pass_to_print_around_has_to_exist(opt):
    code, _, err = opt(MODEL, "--cse", "--mlir-print-ir-after=pcp-grda")
    assert code == 2
    assert "--mlir-print-ir-after: no pass named 'pcp-grda'. Did you mean 'pcp-" in err


def test_a_failing_pass_says_how_to_reproduce_it(opt, capsys):
    code, _, err = opt(BAD_PLAN, "--cse", "--pcp-verify-plan", "--canonicalize")
    assert code == 1
    error, note = err.splitlines()
    assert error.startswith("pcp-opt: error: in.mlir:3:8: 'pcp.all_reduce' op names @m")
    words = shlex.split(note.partition("reproduce with: ")[2])
    assert words[0] == "pcp-opt"
    assert "// pcp-opt " in Path(words[1]).read_text()
    assert main(words[1:]) == 1
    assert "'pcp.all_reduce' op names @m" in capsys.readouterr().err


def test_a_failing_pass_of_mlir_is_named_at_the_place(opt):
    code, _, err = opt(MODEL, "--pass-pipeline=builtin.module(sharding-propagation)")
    assert code == 1
    assert err.startswith("pcp-opt: error: in.mlir: unable to schedule pass")
    assert "(in sharding-propagation)" in err.splitlines()[0]


def test_the_ir_after_a_failure_can_be_printed(opt):
    _, _, err = opt(BAD_PLAN, "--pcp-verify-plan", "--mlir-print-ir-after-failure")
    assert "IR Dump After pcp-verify-plan Failed" in err


def test_debug_shows_the_traceback(opt):
    assert "Traceback" not in opt("foo")[2]
    assert "Traceback" in opt("foo", "--debug")[2]


def test_every_pass_of_ours_is_listed(capsys):
    assert main(["--list-passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=1)[1:] for line in lines}
    assert set(catalog.PASSES) < set(listed)
    assert all(summary for summary in listed.values())


def test_dialects_are_listed(capsys):
    assert main(["--show-dialects"]) == 0
    assert {"pcp", "stablehlo", "chlo", "func"} <= set(capsys.readouterr().out.split())


def test_help_has_an_example(capsys):
    assert main(["--help"]) == 0
    assert "example:\n  pcp-opt model.mlir" in capsys.readouterr().out


@pytest.mark.parametrize("name", catalog.MLIR_PASSES)
def test_the_passes_of_mlir_that_are_suggested_exist(opt, name):
    passes(opt, f"--{name}")


def test_the_command_is_installed_and_starts_fast():
    command = Path(sys.executable).with_name("pcp-opt")
    done = subprocess.run(
        [str(command), "-", "--cse"],
        input=MODEL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.count("stablehlo.add") == 1


def test_it_imports_no_framework():
    script = (
        "import sys, pcp.tools.support.opt_command; "
        "print(*sorted({'torch', 'jax', 'iree', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == ""
