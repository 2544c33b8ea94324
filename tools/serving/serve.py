"""`pcp serve`: folders of models behind OpenAI's API.

It listens at once, and answers when the models are compiled and loaded (`/ready`).
"""

import asyncio
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pcp.errors import ConfigError, UsageError
from pcp.serving.tokens.tokenizer import needed
from pcp.tools.serving.serving_engine import Make, add_engine_flags, engine_maker
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.lines import say
from pcp.tools.support.signals import in_order

if TYPE_CHECKING:
    from pcp.serving.gateway.gateway import Options
    from pcp.serving.gateway.served_models import Model

PROG = "pcp serve"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Serve models: OpenAI's API under /v1, a chat page, metrics. A "
        "folder is one that transformers' save_pretrained wrote, with its tokenizer. "
        "Each has an engine of its own, as the flags say; requests name their model, "
        "or mean the first. Ctrl-C ends it.",
        example="pcp serve model/ --slots 8 --port 8000",
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="of a model each"
    )
    add_engine_flags(parser)
    add = parser.add_argument_group("who may ask").add_argument
    add("--host", default="127.0.0.1", help="address to listen on; this machine's own")
    add("--port", type=port_number, default=8000, help="default: 8000; 0: any free one")
    add("--api-key-file", type=Path, metavar="FILE", help="names and hashes of keys")
    add("--new-key", metavar="NAME", help="add a key to that file, print it, and end")
    help_ = "with --new-key: it may start, stop and scale models, and change weights"
    add("--operator", action="store_true", help=help_)
    add("--insecure", action="store_true", help="other machines may ask without a key")
    add("--tls-cert", type=Path, metavar="FILE", help="certificate (PEM): HTTPS")
    add("--tls-key", type=Path, metavar="FILE", help="its key")
    add(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="pages of this origin may ask from a browser (several times)",
    )
    add("--ui", type=Path, metavar="DIR", help="another page: DIR/index.html, /static")
    add = parser.add_argument_group("answers").add_argument
    help_ = "default: the folder's; of several folders one each, in their order"
    add("--model-name", action="append", metavar="NAME", help=help_)
    add("--chat-template", type=Path, metavar="FILE", help="Jinja, in place of its own")
    add("--queue", type=_count, default=128, metavar="N", help="requests that may wait")
    add("--per-key", type=_count, default=0, metavar="N", help="of one key; 0: any")
    add(
        "--quantum",
        type=_count,
        default=2048,
        metavar="N",
        help="tokens by which a key may be ahead before it makes way; 0: any",
    )
    add("--deadline", type=_seconds, default=600.0, metavar="S", help="of a request")
    add("--patience", type=_seconds, default=30.0, metavar="S", help="with readers")
    add("--body-limit", type=_count, default=8 << 20, metavar="BYTES", help="a request")
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    if flags.new_key is not None:
        return _new_key(flags)
    if (flags.tls_cert is None) != (flags.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    for folder in flags.folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder of a model")
    _check_several(flags)
    for package in ("starlette", "uvicorn"):
        needed(package)
    _serve(flags, engine_maker(flags, say))
    return 0


def _check_several(flags: Namespace) -> None:
    """What is of one model alone goes with one folder."""
    if len(flags.folders) == 1:
        return
    for flag in ("bundle", "draft", "chat_template"):
        if getattr(flags, flag) is not None:
            name = "--" + flag.replace("_", "-")
            raise UsageError(f"{name} is of one model, and there are several folders")
    names = flags.model_name
    if names is not None and len(names) != len(flags.folders):
        raise UsageError(
            f"--model-name: {len(names)} for {len(flags.folders)} folders; one for each"
        )
    names = names or [folder.resolve().name for folder in flags.folders]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two models are named {min(twice)}: give each a --model-name")


def _models(flags: Namespace) -> "list[Model]":
    from pcp.serving.gateway.served_models import Model

    folders = flags.folders
    names = flags.model_name or [folder.resolve().name for folder in folders]
    if len(folders) == 1:
        return [Model(tuple(names), folders[0], flags.chat_template)]
    pairs = zip(names, folders, strict=True)
    return [Model((name,), folder) for name, folder in pairs]


def _serve(flags: Namespace, make: Make) -> None:
    from pcp.serving.gateway.gateway import Gateway

    gateway = Gateway(
        lambda model: make(model.folder, model.slots, model.weights),
        _models(flags),
        _options(flags),
        log=say,
    )
    with gateway.listen(flags.host, flags.port) as sock:
        host = f"[{flags.host}]" if ":" in flags.host else flags.host
        scheme = "https" if flags.tls_cert else "http"
        say(f"serving at {scheme}://{host}:{sock.getsockname()[1]}/ (Ctrl-C ends)")
        asyncio.run(gateway.serve(sock))


def _options(flags: Namespace) -> "Options":
    from pcp.serving.gateway.api_keys import ApiKeys
    from pcp.serving.gateway.gateway import Options

    certificate = (flags.tls_cert, flags.tls_key) if flags.tls_cert else None
    return Options(
        keys=ApiKeys.read(flags.api_key_file),
        body_limit=flags.body_limit,
        seconds=flags.deadline,
        patience=flags.patience,
        origins=frozenset(flags.allow_origin),
        pages=flags.ui,
        certificate=certificate,
        insecure=flags.insecure,
        scheduler={
            "queue": flags.queue,
            "per_key": flags.per_key,
            "quantum": flags.quantum,
        },
    )


def _new_key(flags: Namespace) -> int:
    from pcp.serving.gateway import api_keys

    if flags.api_key_file is None:
        raise UsageError("--new-key needs --api-key-file, the file that it goes to")
    made = api_keys.new(flags.api_key_file, flags.new_key, operator=flags.operator)
    print(made)
    note = "this is the only time that the key is shown: the file has its hash"
    print(f"{PROG}: {note}", file=sys.stderr)
    return 0


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise ValueError(text)
    return number
