"""Text to tokens and back: any tokens, any pieces, any end."""

import json
import random
from pathlib import Path

import pytest
from helpers.present import present
from helpers.serving.model_folder import TEMPLATE, write

from pcp.errors import ConfigError, UsageError
from pcp.serving.tokens.chat_template import ChatTemplate
from pcp.serving.tokens.detokenizer import Detokenizer
from pcp.serving.tokens.grammar import Constraint, Grammars
from pcp.serving.tokens.stop_strings import StopStrings
from pcp.serving.tokens.tokenizer import Tokenizer

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder) -> Tokenizer:
    return Tokenizer.of(folder)


# The tokenizer.


@pytest.mark.parametrize("text", ["", "Hello", "Grüße, 東京 🎉\n", "\x00\t"])
def test_text_comes_back(tokenizer, text) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_named_and_left_out(tokenizer) -> None:
    tokens = tokenizer.encode("<|user|>hi</s>")
    assert tokenizer.decode(tokens) == "hi"
    assert tokenizer.decode(tokens, special=True) == "<|user|>hi</s>"
    assert tokenizer.named == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("name", "content", "stop"),
    [
        ("generation_config.json", {"eos_token_id": [1, 4]}, {1, 4}),
        ("config.json", {"eos_token_id": 2}, {2}),
        ("tokenizer_config.json", {"eos_token": "</s>"}, {1}),
        ("tokenizer_config.json", {}, set()),
    ],
)
def test_what_ends_an_answer(tmp_path, name, content, stop) -> None:
    write(tmp_path)
    for file in ("generation_config.json", "tokenizer_config.json"):
        (tmp_path / file).unlink()
    (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.of(tmp_path).stop == stop


def test_a_folder_without_or_with_a_broken_tokenizer_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not there"):
        Tokenizer.of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.of(tmp_path)


# Pieces of text.


def pieces(tokenizer: Tokenizer, tokens: list[int], prompt: tuple = ()) -> list[str]:
    made = Detokenizer(tokenizer, prompt)
    return [*(made.push(token) for token in tokens), made.finish()]


def test_characters_of_several_tokens_come_whole(tokenizer) -> None:
    text = "Grüße 東京 🎉🎉 ñ € \u200b end"
    sent = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(sent) == text
    assert "" in sent, "no character had several tokens"
    assert not any("\ufffd" in piece for piece in sent)


def test_pieces_of_any_tokens_are_the_text_of_all(tokenizer) -> None:
    draw = random.Random(0)
    for _ in range(200):
        tokens = [draw.randrange(tokenizer.size) for _ in range(draw.randint(1, 30))]
        assert "".join(pieces(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_a_cut_character_at_the_end_is_sent_as_such(tokenizer) -> None:
    tokens = tokenizer.encode("a🎉")[:-1]
    assert "".join(pieces(tokenizer, tokens)) == "a\ufffd"


def test_a_space_before_the_first_word_is_kept(tmp_path) -> None:
    """As SentencePiece has it: a leading space is text only behind other text."""
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers

    made = Made(
        models.WordLevel({"[UNK]": 0, "▁Say": 1, "▁hello": 2}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    (tmp_path / "tokenizer.json").write_text(made.to_str())
    tokenizer = Tokenizer.of(tmp_path)
    assert pieces(tokenizer, [2, 2]) == ["hello", " hello", ""]
    assert pieces(tokenizer, [2], (1,)) == [" hello", ""]


# Stop strings.


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("text", "stops", "sent", "found"),
    [
        ("one two three", ["two"], "one ", "two"),
        ("one two three", ["four"], "one two three", None),
        ("aab", ["ab"], "a", "ab"),
        ("ababac", ["abac", "c"], "ab", "abac"),
        ("say END", ["END OF"], "say END", None),
        ("x\n\ny", ["\n\n"], "x", "\n\n"),
        ("stop", [], "stop", None),
    ],
)
def test_a_text_ends_before_a_stop_string(text, stops, sent, found, size) -> None:
    strings = StopStrings(stops)
    got = ""
    for at in range(0, len(text), size):
        got += strings.push(text[at : at + size])
        if strings.found:
            break
    assert (got + strings.finish(), strings.found) == (sent, found)


def test_what_cannot_be_a_stop_string_is_sent_at_once() -> None:
    strings = StopStrings(["</answer>"])
    assert strings.push("a < b") == "a < b"
    assert strings.push(" </ans") == " "
    assert strings.push("wer") == ""


# Chat templates.

pytest.importorskip("jinja2")
ASKED = [{"role": "user", "content": "hi"}]


def test_a_template_is_of_a_file_or_of_the_configuration(tmp_path) -> None:
    named = {"eos_token": "</s>"}
    write(tmp_path)
    wanted = "<|user|>hi</s><|assistant|>"
    assert present(ChatTemplate.of(tmp_path, named)).render(ASKED) == wanted
    (tmp_path / "chat_template.jinja").unlink()
    assert ChatTemplate.of(tmp_path, named) is None
    for source in (TEMPLATE, [{"name": "default", "template": TEMPLATE}]):
        file = tmp_path / "tokenizer_config.json"
        file.write_text(json.dumps({"chat_template": source}))
        assert present(ChatTemplate.of(tmp_path, named)).render(ASKED) == wanted
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages[0].content }}!")
    assert present(ChatTemplate.of(tmp_path, named, other)).render(ASKED) == "hi!"


def test_a_template_that_refuses_says_why() -> None:
    made = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(UsageError, match="roles must alternate"):
        made.render(ASKED)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source) -> None:
    with pytest.raises(UsageError):
        ChatTemplate(source, {}).render(ASKED)


def test_a_template_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate("{% for %}", {})


def test_templates_have_what_transformers_gives_them() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ {'ä': 1} | tojson }}{{ strftime_now('%Y') | length }}{% endfor %}"
    )
    assert ChatTemplate(source, {}).render(ASKED * 2) == '{"ä": 1}4'


# Grammars.


def allowed(constraint: Constraint, size: int) -> set[int]:
    mask = constraint.mask()
    return {v for v in range(size) if mask[v // 8] >> v % 8 & 1}


def drawn(constraint: Constraint, tokenizer: Tokenizer, seed: int) -> str:
    """An answer of random allowed tokens."""
    draw, tokens = random.Random(seed), []
    while True:
        token = draw.choice(sorted(allowed(constraint, tokenizer.size)))
        if token in tokenizer.stop:
            return tokenizer.decode(tokens)
        constraint.push(token)
        tokens.append(token)


def test_random_tokens_under_a_schema_are_json_of_it(tokenizer) -> None:
    pytest.importorskip("llguidance")
    grammars = Grammars(tokenizer, tokenizer.size)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "yy"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for seed in range(5):
        value = json.loads(drawn(grammars.json_schema(schema), tokenizer, seed))
        assert isinstance(value["a"], bool)
        assert value["b"] in ("x", "yy")
        assert len(value) == 2


def test_random_tokens_under_an_expression_match_it(tokenizer) -> None:
    pytest.importorskip("llguidance")
    grammars = Grammars(tokenizer, tokenizer.size)
    for seed in range(5):
        text = drawn(grammars.regex("[ab]{3}-(yes|no)"), tokenizer, seed)
        assert text[:3].strip("ab") == ""
        assert text[3:] in ("-yes", "-no")


def test_a_mask_has_the_size_of_the_vocabulary(tokenizer) -> None:
    """The model's may be larger than the tokenizer's: what is beyond never comes."""
    pytest.importorskip("llguidance")
    for size in (tokenizer.size, tokenizer.size + 100):
        constraint = Grammars(tokenizer, size).regex("a")
        assert len(constraint.mask()) == (size + 7) // 8
        assert allowed(constraint, size) == {tokenizer.encode("a")[0]}


@pytest.mark.parametrize(
    ("kind", "form"), [("regex", "("), ("json_schema", {"type": "no such type"})]
)
def test_a_form_that_is_none_is_an_error(tokenizer, kind, form) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(UsageError, match="cannot be held to"):
        getattr(Grammars(tokenizer, tokenizer.size), kind)(form)


def test_a_token_against_the_grammar_is_an_error(tokenizer) -> None:
    pytest.importorskip("llguidance")
    constraint = Grammars(tokenizer, tokenizer.size).regex("a")
    with pytest.raises(UsageError, match="token"):
        constraint.push(tokenizer.encode("b")[0])
