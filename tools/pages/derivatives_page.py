"""docs/derivatives.md: what the table of derivative rules holds, op by op."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from inspect import cleandoc

from pcp.autodiff.core.kinds import Decomposed, NoGradient, Refusal, Rule, Vjp
from pcp.autodiff.core.registry import CHAPTERS

MEANING = {
    "Linear": "transpose, and the op itself on tangents",
    "Bilinear": "transpose in each operand",
    "Elementwise": "a derivative for each operand, in both modes",
    "Vjp": "a rule of its own",
    "Decomposed": "taken apart into other ops first",
    "NoGradient": "zero, as a fact",
    "Refusal": "an error, by decision",
}


def derivatives_page() -> Iterator[str]:
    """A section for each chapter of `autodiff/rules/`."""
    yield "# Derivatives, op by op"
    yield "<!-- Written by `make docs` from the tables of rules; change those. -->"
    yield (
        "An op that is not here has no rule, and is an error where a derivative flows "
        "through it. Each rule is tested by the cases of its chapter, "
        "`tests/helpers/cases/*.py`, against JAX, in both modes; the column names the "
        "test of `tests/autodiff` that holds the modes against each other and against "
        "differences, at random shapes. What stands at the head of a chapter is the "
        "mathematics that its rules share, and where it is from. "
        "docs/adding-a-rule.md says how to add one."
    )
    yield _table(("kind", "what it means"), list(MEANING.items()))
    for chapter in CHAPTERS:
        module = import_module(f"pcp.autodiff.rules.{chapter}")
        yield f"## {chapter.replace('_', ' ').capitalize()}"
        yield f"`autodiff/rules/{chapter}.py`: {cleandoc(module.__doc__ or '')}"
        rows = [
            (
                f"`{name}`",
                type(rule).__name__,
                *_modes(rule),
                _test(chapter, name, rule),
                _note(rule),
            )
            for name, rule in sorted(module.RULES.items())
        ]
        yield _table(("op", "kind", "reverse", "forward", "test", "why"), rows)


def _modes(rule: Rule) -> tuple[str, str]:
    """How each mode differentiates the op."""
    match rule:
        case NoGradient():
            return "zero", "zero"
        case Refusal():
            return "refused", "refused"
        case Decomposed():
            return "of what it stands for", "of what it stands for"
        case Vjp(forward=None):
            return "yes", "transposed twice"
    return "yes", "yes"


#: Where a test over several members, or of a registered rule, takes the place.
TESTED_APART = {
    "collectives": "rules/test_collectives.py::test_transpose",
    "replicas": "rules/test_replicas.py::test_vjp",
    "async_done": "rules/test_replicas.py::test_vjp",
    "async_start": "rules/test_replicas.py::test_vjp",
    "custom_call": "core/test_custom.py::test_custom_call",
    "pcp.start": "rules/test_collectives.py::test_transpose",
    "pcp.wait": "rules/test_collectives.py::test_transpose",
}


def _test(chapter: str, name: str, rule: Rule) -> str:
    """The test of a rule that passes derivatives on."""
    if isinstance(rule, NoGradient | Refusal):
        return ""
    apart = TESTED_APART.get(name) or TESTED_APART.get(chapter)
    qualified = name if "." in name else f"stablehlo.{name}"
    return f"`{apart or f'test_dot.py::test_modes_agree[{qualified}]'}`"


def _note(rule: Rule) -> str:
    if isinstance(rule, NoGradient | Refusal):
        return rule.why.replace("|", r"\|")
    return ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
