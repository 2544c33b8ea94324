"""`pcp chat`: talk to a served model in a terminal."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

from pcp.errors import RuntimeFault
from pcp.serving.client import Client
from pcp.tools.serving.served import add_client_flags, client_of
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say

PROG = "pcp chat"
Messages = list[dict[str, str]]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Talk to a model that pcp serve, or another server of OpenAI's "
        "API, serves. An empty line does nothing, `clear` begins anew, `quit` and "
        "`exit` end; Ctrl-C ends an answer.",
        example="pcp chat http://127.0.0.1:8000",
    )
    add_client_flags(parser)
    add = parser.add_argument
    add("--message", metavar="TEXT", help="say this, print the answer, and end")
    add("--system", metavar="TEXT", help="what the model is told first")
    add("--max-tokens", type=int, default=256, metavar="N", help="default: 256")
    add("--temperature", type=float, default=0.7)
    add("--top-p", type=float, default=0.9)
    add("--seed", type=int, help="the same answers each time")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    client = client_of(flags)
    messages = [{"role": "system", "content": flags.system}] if flags.system else []
    if flags.message is not None:
        _answer(client, flags, messages, flags.message)
        return
    models = [model["id"] for model in client.get("/v1/models")["data"]]
    say(f"{client.url} serves {', '.join(models)}; quit ends, clear begins anew")
    first = len(messages)
    for said in _lines():
        if said.lower() == "clear":
            del messages[first:]
            say("cleared")
            continue
        try:
            _answer(client, flags, messages, said)
        except RuntimeFault as error:  # the conversation goes on
            say(str(error))


def _lines() -> Iterator[str]:
    """What the user says, until there is an end."""
    while True:
        try:
            said = input("\nyou: ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if said.lower() in ("quit", "exit"):
            return
        if said:
            yield said


def _answer(client: Client, flags: Namespace, messages: Messages, said: str) -> None:
    """Print an answer as it comes; a failed one is no part of the conversation."""
    asked = {
        "model": flags.model,
        "messages": [*messages, {"role": "user", "content": said}],
        "max_tokens": flags.max_tokens,
        "temperature": flags.temperature,
        "top_p": flags.top_p,
    }
    if flags.seed is not None:
        asked["seed"] = flags.seed
    text = ""
    with closing(client.stream("/v1/chat/completions", asked)) as chunks:
        with suppress(KeyboardInterrupt):
            for chunk in chunks:
                for choice in chunk["choices"]:
                    piece = choice["delta"].get("content") or ""
                    text += piece
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        print()
    messages += [
        {"role": "user", "content": said},
        {"role": "assistant", "content": text},
    ]
