"""Answers of a given form: after each token, the tokens that may come next.

A JSON schema or a regular expression becomes a bit mask of the vocabulary, by the
package `llguidance`. Bit v of a mask (byte v // 8, least significant first) is whether
token v may come. A token that ends the answer may where the form is complete.
"""

from collections.abc import Mapping
from typing import Any

from pcp import strict_json
from pcp.errors import UsageError
from pcp.serving.tokens.tokenizer import Tokenizer, needed


class Grammars:
    """Makes constraints for one vocabulary of `size` tokens."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        self._shared: Any = None

    def json_schema(self, schema: Mapping[str, Any]) -> "Constraint":
        """JSON of a schema; UsageError for a schema that cannot be held to."""
        package = needed("llguidance")
        text = strict_json.dumps(schema)
        return self._constraint(package.LLMatcher.grammar_from_json_schema, text)

    def any_json(self) -> "Constraint":
        """Any JSON object."""
        return self.json_schema({"type": "object"})

    def regex(self, pattern: str) -> "Constraint":
        """Text that a regular expression matches as a whole."""
        package = needed("llguidance")
        return self._constraint(package.LLMatcher.grammar_from_regex, pattern)

    def _constraint(self, made: Any, source: str) -> "Constraint":
        package = needed("llguidance")
        try:
            grammar = made(source)
        except ValueError as error:
            raise UsageError(f"a form that cannot be held to: {error}") from error
        matcher = package.LLMatcher(self._vocabulary(package), grammar)
        if matcher.is_error():
            raise UsageError(f"a form that cannot be held to: {matcher.get_error()}")
        return Constraint(matcher, self._size)

    def _vocabulary(self, package: Any) -> Any:
        """The vocabulary in llguidance's terms, made once."""
        if not self._tokenizer.stop:
            raise UsageError("the model has no token that ends an answer")
        if self._shared is None:
            self._shared = package.LLTokenizer(
                self._tokenizer.serialized(),
                n_vocab=max(self._size, self._tokenizer.size),
                eos_token=sorted(self._tokenizer.stop),
            )
        return self._shared


class Constraint:
    """Where one answer is in its grammar."""

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher, self._size = matcher, size

    def mask(self) -> bytes:
        """The tokens that may come next."""
        return self._matcher.compute_bitmask()[: (self._size + 7) // 8]

    def push(self, token: int) -> None:
        """A token came; UsageError for one that the mask did not allow."""
        if not self._matcher.consume_token(token):
            raise UsageError(f"token {token}: {self._matcher.get_error()}")
