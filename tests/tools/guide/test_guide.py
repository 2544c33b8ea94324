"""The guide's exercises: every answer holds, every hole fails, and nothing hangs."""

import socket
from pathlib import Path

import pytest

from pcp.tools.guide import guide
from pcp.tools.guide.chapters import CHAPTERS, HOLE, answer, exercise, file_of, page_of
from pcp.tools.guide.checks import CHECKS, result

NUMBERS = range(1, len(CHAPTERS) + 1)


def test_every_chapter_has_an_exercise_with_a_check():
    assert list(CHECKS) == list(CHAPTERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_worked_answer_is_right(number, tmp_path):
    path = tmp_path / file_of(number)
    path.write_text(answer(number))
    found = result(number, path)
    assert found["wrong"] is None
    assert sorted(found["held"]) == sorted(_asked(number))


def _asked(number: int) -> list[str]:
    """The functions whose bodies are the reader's."""
    names, name = [], ""
    for line in exercise(number).splitlines():
        if line.strip().startswith("def "):
            name = line.split("def ")[1].split("(")[0]
        elif HOLE in line:
            names.append(name)
    assert len(names) >= 2
    return names


@pytest.mark.parametrize("number", NUMBERS)
def test_each_hole_alone_is_found(number, tmp_path):
    parts = answer(number).split("# (answer\n")
    for hole in range(1, len(parts)):
        body, rest = parts[hole].split("# answer)\n", 1)
        left = [*parts[:hole], f"{HOLE}\n{rest}", *parts[hole + 1 :]]
        text = left[0] + "".join(
            one if i == hole else f"# (answer\n{one}" for i, one in enumerate(left) if i
        )
        assert body not in text
        path = tmp_path / f"{hole}.py"
        path.write_text(text)
        assert "this one is yours to write" in result(number, path)["wrong"]


#: What readers write first and is wrong: chapter, right text, wrong text, what is said.
WRONG = (
    (1, "parts[0].copy()", "parts[0]", "that the members' arrays are as they were"),
    (1, "len({result.tobytes() for result in results}) == 1",
     "all((r == results[0]).all() for r in results)", "agree() of the same NaN"),
    (2, "(rank + 1) % size", "rank", "(rank, finished chunk)"),
    (2, "2 * (size - 1) * array_bytes / size", "2 * array_bytes", "bytes_sent"),
    (3, "if length > limit:", "if length > 1 << 62:", "ValueError is expected"),
    (4, "array[:] = before", "array = before", "the array behind a failure"),
    (4, 'if set(votes) == members else "open"', 'if votes else "open"', "the outcome"),
    (5, "wanted = values + error", "wanted = values", "that 50 sums"),
    (6, "lr * (delta + momentum * velocity)", "lr * velocity", "the second anchor"),
    (7, "return g @ b.T, a.T @ g", "return g, g", "the cotangent of a"),
    (8, "return x[:, inner] @ w[inner]", "return x @ w", "the sum of the partial"),
    (9, "max(compute, beside) + exchange - beside", "compute + exchange - beside",
     "0.5 s beside"),
    (10, "self.free = sorted(self.free + self.held.pop(worker, []))",
     "self.held.pop(worker, [])", "what is free when b has died"),
)  # fmt: skip


@pytest.mark.parametrize(("number", "right", "wrong", "said"), WRONG)
def test_a_wrong_answer_is_told_why(number, right, wrong, said, tmp_path):
    assert answer(number).count(right) == 1
    path = tmp_path / "own.py"
    path.write_text(answer(number).replace(right, wrong))
    assert said in str(result(number, path)["wrong"])


def test_a_reader_starts_fills_in_and_is_done(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert guide.main([]) == 0
    listed = capsys.readouterr().out
    assert all(title in listed for title in CHAPTERS.values())
    assert guide.main(["start", "mine"]) == 0
    assert guide.main(["check", "2", "mine"]) == 1
    assert "exercise_02_ring.py:" in capsys.readouterr().out
    (tmp_path / "mine" / file_of(2)).write_text(answer(2))
    assert guide.main(["check", "2", "mine"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "chapter 2 is done"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os; os._exit(3)", "ended the process"),
        ("def f(:", "SyntaxError"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
    ],
)
def test_a_file_that_ends_or_waits_is_told(text, said, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(guide, "LIMIT_S", 1 if "sleep" in text else 60)
    (tmp_path / file_of(1)).write_text(text)
    assert guide.main(["check", "1", str(tmp_path)]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("check", 2, "which chapter? pcp guide check N [DIR]"),
        ("check 11", 2, "no chapter '11': there are 1 to 10"),
        ("check 3 nowhere", 1, "pcp guide start nowhere writes the exercises"),
        ("start a b", 2, "'b' is one word too many"),
        ("chek 3", 2, "Did you mean 'check'?"),
        ("start there", 1, "writes over no file"),
    ],
)
def test_wrong_words_are_told(line, code, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / file_of(1)).write_text("")
    assert guide.main(line.split()) == code
    assert said in capsys.readouterr().err


def test_the_checks_leave_no_socket(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(answer(3))
    before = {one for one in Path("/proc/self/fd").iterdir()}
    assert result(3, path)["wrong"] is None
    assert len(list(Path("/proc/self/fd").iterdir())) <= len(before)
    assert socket.getdefaulttimeout() is None


def test_every_chapter_has_a_page():
    root = Path(__file__).parents[3] / "docs"
    for number, title in enumerate(CHAPTERS.values(), 1):
        text = (root / page_of(number)).read_text()
        assert text.startswith(f"# {number}. {title}\n")
        assert f"pcp guide check {number} " in text
