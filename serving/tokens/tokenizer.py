"""A model's tokenizer, from its folder: text to tokens and back.

    tokenizer = Tokenizer.of("model/")
    tokens = tokenizer.encode("Hello")
    text = tokenizer.decode(tokens)

`tokenizer.json` is read by the package `tokenizers`, which wrote it. What ends an
answer stands in `generation_config.json`, `config.json` or `tokenizer_config.json`, the
first that says it.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pcp import outside
from pcp.errors import ConfigError, MissingPackage, install


def needed(package: str) -> Any:
    """A package of the extra `serve`; MissingPackage says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise MissingPackage(f"serving needs {name}: {install('serve')}") from error


def read_json(folder: Path, name: str) -> Mapping[str, Any]:
    """A JSON object of a model's folder; an empty one without the file."""
    path = folder / name
    return outside.read_object(path) if path.exists() else {}


class Tokenizer:
    """The tokens of a model, by number. Safe to use from several threads."""

    def __init__(
        self, inner: Any, stop: frozenset[int], named: Mapping[str, str]
    ) -> None:
        self._inner = inner
        self.stop = stop
        """The tokens that end an answer."""
        self.named = named
        """Texts of special tokens by name: `bos_token`, `eos_token` and so on."""

    @classmethod
    def of(cls, folder: str | Path) -> "Tokenizer":
        """The tokenizer of a model's folder; ConfigError where there is none."""
        folder = Path(folder)
        package = needed("tokenizers")
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{path} is not there: a server needs the tokenizer as the package "
                "`tokenizers` writes it (transformers: save_pretrained of a fast one)"
            )
        try:
            inner = package.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises Exception itself
            raise ConfigError(f"{path}: {error}") from error
        inner.no_padding()
        inner.no_truncation()
        named = {
            name: text
            for name, value in read_json(folder, "tokenizer_config.json").items()
            if name.endswith("_token") and (text := _text(value))
        }
        return cls(inner, _stops(folder, inner, named), named)

    @property
    def size(self) -> int:
        """How many tokens there are, added ones included."""
        return self._inner.get_vocab_size()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; `special`, with those that begin and end one."""
        return self._inner.encode(text, add_special_tokens=special).ids

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; with `special`, of special ones too."""
        return self._inner.decode(list(tokens), skip_special_tokens=not special)

    def text_of(self, token: int) -> str:
        """One token by itself, special or not."""
        return self.decode([token], special=True)

    def serialized(self) -> str:
        """The content of `tokenizer.json`."""
        return self._inner.to_str()


def _text(value: Any) -> str:
    """A token in `tokenizer_config.json`: its text, or an object that has it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _stops(folder: Path, inner: Any, named: Mapping[str, str]) -> frozenset[int]:
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder, name).get("eos_token_id")
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    token = inner.token_to_id(named.get("eos_token", ""))
    return frozenset() if token is None else frozenset([token])
