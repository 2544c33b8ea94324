"""A model's folder without weights: a tokenizer trained here, and a chat template.

The vocabulary is of bytes, so any text has tokens, and a character of several bytes
often has several.
"""

import json
from functools import cache
from pathlib import Path

TEMPLATE = """{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content }}{{ eos_token }}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""
SPECIAL = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
TEXT = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    '{"name": "value", "count": 12, "list": [true, false, null]}' * 3,
    "Grüße aus Köln, déjà vu: naïve café. " * 3,
]


@cache
def tokenizer_json(size: int = 320) -> str:
    """A byte-level BPE tokenizer of about `size` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT, trainer)
    return made.to_str()


def write(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """The files of a model's folder that a gateway reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    end = {"__type": "AddedToken", "content": "</s>"}
    named = {"bos_token": "<s>", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
