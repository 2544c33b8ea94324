"""`pcp completion`: a script that completes commands, flags and their choices.

eval "$(pcp completion bash)"
eval "$(pcp completion zsh)"
pcp completion fish | source
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from shlex import quote

from pcp.tools.cli import COMMANDS
from pcp.tools.support.command import Parser, run

PROG = "pcp completion"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser.documented(PROG, __doc__)
    parser.add_argument("shell", choices=tuple(SHELLS))
    return parser


def _main(argv: Sequence[str]) -> None:
    print(SHELLS[parser().parse_args(argv).shell](words_of_all()), end="")


@dataclass(frozen=True)
class Words:
    """What may follow a command."""

    flags: Mapping[str, tuple[str, ...]]
    """Each flag, and the choices of its value."""
    choices: tuple[str, ...]
    """Of its words without a flag."""


def words_of_all() -> dict[str, Words]:
    """The words of every command, from its parser."""
    return {
        name: words_of(import_module(module).parser())
        for name, (module, _) in sorted(COMMANDS.items())
    }


def words_of(parser: argparse.ArgumentParser) -> Words:
    """The words of one parser; flags without a help text that is shown are left out."""
    flags: dict[str, tuple[str, ...]] = {}
    choices: list[str] = []
    for action in parser._actions:
        known = tuple(map(str, action.choices or ()))
        if not action.option_strings:
            choices += known
        elif action.help != argparse.SUPPRESS:
            longest = max(action.option_strings, key=len)
            flags[longest] = known
    return Words(flags, tuple(choices))


def bash(commands: Mapping[str, Words]) -> str:
    """For bash; other words are files."""
    lines = [
        "_pcp() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        '  local words=""',
        "  if [ $COMP_CWORD -eq 1 ]; then",
        f"    words={quote(' '.join(commands))}",
        "  else",
        '    case "${COMP_WORDS[1]} $before" in',
    ]
    for name, known in commands.items():
        for flag, values in known.flags.items():
            if values:
                words = quote(" ".join(values))
                lines.append(f"    {quote(f'{name} {flag}')}) words={words};;")
    lines.append('    *) case "${COMP_WORDS[1]} $word" in')
    for name, known in commands.items():
        words = quote(" ".join(known.flags))
        lines.append(f"      {quote(name)}\\ -*) words={words};;")
        if known.choices:
            words = quote(" ".join(known.choices))
            lines.append(f"      {quote(name)}\\ *) words={words};;")
    lines += [
        "      esac;;",
        "    esac",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        '  [ -n "$words" ] || COMPREPLY=($(compgen -f -- "$word"))',
        "}",
        "complete -o filenames -F _pcp pcp",
    ]
    return "\n".join(lines) + "\n"


def zsh(commands: Mapping[str, Words]) -> str:
    """For zsh, which takes bash's."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash(commands)


def fish(commands: Mapping[str, Words]) -> str:
    """For fish."""
    lines = []
    for name, known in commands.items():
        about = quote(COMMANDS[name][1])
        lines.append(
            f"complete -c pcp -f -n __fish_use_subcommand -a {name} -d {about}"
        )
        after = quote(f"__fish_seen_subcommand_from {name}")
        for flag, values in known.flags.items():
            more = f" -x -a {quote(' '.join(values))}" if values else ""
            lines.append(f"complete -c pcp -n {after} -l {flag.lstrip('-')}{more}")
        if known.choices:
            words = quote(" ".join(known.choices))
            lines.append(f"complete -c pcp -n {after} -a {words}")
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[Mapping[str, Words]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
