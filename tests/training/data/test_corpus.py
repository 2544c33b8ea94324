"""Tokens and the order of samples: everything once, the same everywhere."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import ConfigError
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.data import tokens
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.data.formats.token_files import TokenFile
from pcp.training.data.order import permute
from pcp.training.data.window_order import read_manifest

BASE = {
    "model_path": "m.mlir",
    "learning_rate": 0.1,
    "tau": 2,
    "outer_loop_steps": 3,
    "validation_fraction": 0.1,
}


def _corpus(tmp_path, content: bytes, batch=2, block=4, **keys) -> Corpus:
    path = tmp_path / "data"
    path.write_bytes(content)
    experiment = parse({**BASE, "data_path": str(path), **keys})
    return Corpus(experiment, token_inputs(batch, block))


def _tokens(corpus: Corpus) -> tokens.Tokens:
    assert isinstance(corpus.dataset, TokenFile)
    return corpus.dataset.tokens


@given(st.integers(1, 3000), st.integers(0, 1 << 62))
def test_permute_is_a_permutation(count, key):
    result = permute(np.arange(count), count, key)
    assert np.array_equal(np.sort(result), np.arange(count))
    assert permute(np.array([count - 1]), count, key)[0] == result[-1]


def test_permute_never_changes():
    """These numbers decide the data order of old runs: they are a format."""
    assert permute(np.arange(10), 10, 1, 2).tolist() == [1, 5, 8, 9, 0, 2, 3, 7, 6, 4]


def test_permute_looks_random():
    order = permute(np.arange(10000), 10000, 3)
    lag = np.corrcoef(order[:-1], order[1:])[0, 1]
    place = np.corrcoef(order, np.arange(10000))[0, 1]
    assert abs(lag) < 0.05
    assert abs(place) < 0.05


@pytest.mark.parametrize("sampling", ["random", "fifo"])
def test_an_epoch_has_each_sample_once(tmp_path, sampling):
    content = bytes(np.arange(200) % 251)
    corpus = _corpus(tmp_path, content, tokenizer="byte", sampling=sampling)
    for epoch in range(3):
        positions = np.arange(epoch * corpus.samples, (epoch + 1) * corpus.samples)
        starts = corpus.order.indices(positions)
        assert len(set(starts.tolist())) == corpus.samples
        assert len(set((starts % 4).tolist())) == 1  # T apart: no token is shared
        batch = corpus.read(positions).tensors
        assert np.array_equal(batch["ids"][:, 1:], batch["targets"][:, :-1])
        assert batch["targets"].max() < 180  # the rest is held out
        assert batch["ids"].dtype == np.int64


def test_epochs_differ_when_random_and_not_when_fifo(tmp_path):
    content = bytes(range(200))
    random = _corpus(tmp_path, content, tokenizer="byte")
    fifo = _corpus(tmp_path, content, tokenizer="byte", sampling="fifo")
    n, m = np.arange(random.samples), np.arange(fifo.samples)
    assert not np.array_equal(
        random.order.indices(n), random.order.indices(n + random.samples)
    )
    assert np.array_equal(fifo.order.indices(m), fifo.order.indices(m + fifo.samples))
    assert np.array_equal(fifo.order.indices(m), 4 * m)


def test_the_seed_decides_the_order(tmp_path):
    one, same, other = (
        _corpus(tmp_path, bytes(range(200)), tokenizer="byte", seed=seed).order.indices(
            np.arange(20)
        )
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_characters_are_sorted_and_decodable(tmp_path):
    corpus = _corpus(tmp_path, "größe über alles ".encode() * 10)
    characters = _tokens(corpus).tokenizer["characters"]
    assert list(characters) == sorted(set("größe über alles "))
    decoded = "".join(characters[i] for i in _tokens(corpus).ids)
    assert decoded == "größe über alles " * 10


def test_u16_is_little_endian(tmp_path):
    ids = np.arange(500, dtype="<u2") * 100
    corpus = _corpus(tmp_path, ids.tobytes(), tokenizer="u16", sampling="fifo")
    assert corpus.read(np.array([1])).tensors["ids"].tolist() == [[400, 500, 600, 700]]
    assert _tokens(corpus).vocabulary == 49901


def test_validation_is_the_held_out_end(tmp_path):
    corpus = _corpus(tmp_path, bytes(range(200)), tokenizer="byte")
    assert corpus.validation_batches == 2
    first, second = corpus.validation(0), corpus.validation(1)
    assert first.tensors["ids"].tolist() == [[180, 181, 182, 183], [184, 185, 186, 187]]
    assert second.tensors["targets"][0].tolist() == [189, 190, 191, 192]


def test_python_docs_are_english_text():
    text = tokens.python_docs().decode()
    assert len(text) > 200_000
    assert "assert" in text


def test_fixed_chunks_stay_apart_and_are_shuffled(tmp_path):
    corpus = _corpus(
        tmp_path,
        bytes(range(200)),
        tokenizer="byte",
        sampling="fifo",
        chunk_size_mode="fixed_bytes",
        chunk_size_bytes=20,
    )
    starts = corpus.order.indices(np.arange(corpus.samples))
    assert len(set(starts.tolist())) == corpus.samples == 36
    assert all(s // 20 == (s + 4) // 20 for s in starts.tolist())
    chunks = starts[::4] // 20
    assert chunks.tolist() != sorted(chunks.tolist())
    assert sorted(chunks.tolist()) == list(range(9))


def test_a_slice_is_one_round_of_one_worker(tmp_path):
    ids = np.arange(500, dtype="<u2")
    corpus = _corpus(
        tmp_path,
        ids.tobytes(),
        tokenizer="u16",
        sampling="fifo",
        chunk_size_mode="diloco_slices",
        chunk_shuffle=False,
        effective_batch_size=4,
    )
    # tau 2 x 2 accumulated batches x 2 samples x 4 tokens, and one to predict
    assert corpus.order.indices(np.arange(9)).tolist() == [*range(0, 32, 4), 33]


def test_a_manifest_names_the_shards(tmp_path):
    shards = [{"byte_offset": 100, "byte_length": 21}]
    shards += [{"shard_index": 1, "start_offset_bytes": 0, "bytes_written": 13}]
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"shards": shards}))
    corpus = _corpus(
        tmp_path,
        bytes(range(200)),
        tokenizer="byte",
        sampling="fifo",
        chunk_shuffle=False,
        chunk_manifest_path=str(manifest),
    )
    starts = corpus.order.indices(np.arange(corpus.samples)).tolist()
    assert starts == [100, 104, 108, 112, 116, 0, 4, 8]


@pytest.mark.parametrize(
    ("content", "keys", "what"),
    [
        (b"\xff\xfe" * 50, {}, "not UTF-8 text at byte 0"),
        (b"abc", {"tokenizer": "u16"}, "no whole number of u16"),
        (b"abc", {}, "less than one batch"),
        (b"", {}, "is empty"),
        ("ü".encode() * 99, {"chunk_size_mode": "fixed_bytes"}, "several bytes"),
    ],
)
def test_data_that_cannot_be_used_says_why(tmp_path, content, keys, what):
    with pytest.raises(ConfigError, match=what):
        _corpus(tmp_path, content, **keys)


@pytest.mark.parametrize("text", ["{", "[1]", '[{"byte_offset": -1}]', '{"a": 1}'])
def test_a_bad_manifest_is_a_config_error(tmp_path, text):
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a chunk manifest"):
        read_manifest(str(path))


def test_an_unknown_built_in_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'python-docs'"):
        tokens.read_source("builtin:python-doc")


def test_a_vocabulary_that_fits_no_parameter_is_refused(tmp_path):
    corpus = _corpus(tmp_path, bytes(range(200)), tokenizer="byte")
    corpus.check_vocabulary([(256, 8), (8, 8)])
    with pytest.raises(ConfigError, match="256 different tokens"):
        corpus.check_vocabulary([(255, 8), (8, 8)])
    with pytest.raises(ConfigError, match="takes at most 65"):
        tokens.check_vocabulary(256, "byte", [(256, 8)], 65)
