"""Recurrent, attending and routing models in JAX, small."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.models.jax_small import _cross_entropy, _layer_norm, _weights
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax

TIME, BATCH, WIDTH = 5, 2, 4
INPUTS = array(TIME, BATCH, WIDTH)
TOKENS, NEXT = integers(BATCH, TIME, high=6), integers(BATCH, TIME, high=6, seed=1)


def gru(wi, wh, b, head, inputs, labels):
    """A gated recurrent unit by scan."""

    def step(h, x):
        z, r = jnp.split(jax.nn.sigmoid(x @ wi[:, :8] + h @ wh[:, :8] + b), 2, -1)
        n = jnp.tanh(x @ wi[:, 8:] + (r * h) @ wh[:, 8:])
        return (1 - z) * n + z * h, None

    h, _ = lax.scan(step, jnp.zeros((BATCH, WIDTH)), inputs)
    return _cross_entropy(h @ head, labels)


def bidirectional(forward, backward, head, inputs, labels):
    """Two recurrent networks, one of them from the end."""

    def step(w):
        def apply(h, x):
            h = jnp.tanh(jnp.concatenate([x, h], -1) @ w)
            return h, h

        return apply

    zero = jnp.zeros((BATCH, WIDTH))
    _, left = lax.scan(step(forward), zero, inputs)
    _, right = lax.scan(step(backward), zero, inputs, reverse=True)
    return _cross_entropy(jnp.concatenate([left, right], -1).mean(0) @ head, labels)


def translator(embedding, encoder, decoder, query, head, source, target):
    """An encoder, and a decoder that attends to all it has seen."""

    def encode(h, token):
        h = jnp.tanh(embedding[token] + h @ encoder)
        return h, h

    h, memory = lax.scan(encode, jnp.zeros((BATCH, WIDTH)), source.T)

    def decode(h, token):
        scores = jnp.einsum("bd,tbd->bt", h @ query, memory)
        context = jnp.einsum("bt,tbd->bd", jax.nn.softmax(scores), memory)
        h = jnp.tanh(embedding[token] + context + h @ decoder)
        return h, h @ head

    _, logits = lax.scan(decode, h, target.T[:-1])
    return _cross_entropy(logits, target.T[1:])


def encoder(embedding, qkv, out, w1, w2, tokens, labels):
    """A Transformer encoder with a padding mask and label smoothing."""
    x = embedding[tokens]
    real = tokens > 0
    q, k, v = jnp.split(x @ qkv, 3, -1)
    scores = jnp.einsum("btd,bsd->bts", q, k) / 2.0
    weights = jax.nn.softmax(jnp.where(real[:, None], scores, -1e9))
    x = _layer_norm(x + (weights @ v) @ out, 1.0, 0.0)
    x = _layer_norm(x + jax.nn.gelu(x @ w1) @ w2, 1.0, 0.0)
    logits = jax.nn.log_softmax(x @ embedding.T)
    smooth = 0.9 * jax.nn.one_hot(labels, logits.shape[-1]) + 0.1 / logits.shape[-1]
    return -(smooth * logits).sum(-1).mean()


def window_attention(qkv, bias, inputs):
    """Each position sees two behind it, with a learnt bias for the distance."""
    x = inputs.swapaxes(0, 1)
    q, k, v = jnp.split(x @ qkv, 3, -1)
    distance = jnp.arange(TIME)[:, None] - jnp.arange(TIME)
    near = (distance >= 0) & (distance <= 2)
    scores = jnp.einsum("btd,bsd->bts", q, k) + bias[jnp.clip(distance, 0, 2)]
    weights = jax.nn.softmax(jnp.where(near, scores, -jnp.inf))
    return jnp.square(weights @ v).sum()


def state_space(decay, w_in, w_out, inputs):
    """A linear recurrence by associative_scan."""
    rate = jax.nn.sigmoid(decay)
    driven = inputs @ w_in

    def combine(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    rates = jnp.broadcast_to(rate, driven.shape)
    _, states = lax.associative_scan(combine, (rates, driven))
    return jnp.square(states @ w_out - inputs).mean()


def linear_attention(qkv, inputs):
    """Causal attention with positive features: running sums in place of a softmax."""
    q, k, v = jnp.split(inputs @ qkv, 3, -1)
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    kv = jnp.cumsum(jnp.einsum("tbd,tbe->tbde", k, v), 0)
    z = jnp.cumsum(k, 0)
    out = (
        jnp.einsum("tbd,tbde->tbe", q, kv) / jnp.einsum("tbd,tbd->tb", q, z)[..., None]
    )
    return jnp.square(out - inputs).mean()


def mixture_of_experts(router, experts, inputs):
    """Top-1 routing with room for three tokens an expert; the others go by."""
    x = inputs.reshape(-1, WIDTH)
    probabilities = jax.nn.softmax(x @ router)
    chosen = jnp.argmax(probabilities, -1)
    gate = jnp.take_along_axis(probabilities, chosen[:, None], -1)
    places = jnp.cumsum(jax.nn.one_hot(chosen, 3, dtype=jnp.int32), 0)
    place = jnp.take_along_axis(places, chosen[:, None], -1)[:, 0] - 1
    slots = jnp.zeros((3, 3, WIDTH)).at[chosen, place].set(x, mode="drop")
    done = jnp.tanh(jnp.einsum("ecd,edf->ecf", slots, experts))
    kept = (place < 3)[:, None]
    back = jnp.where(kept, done[chosen, jnp.minimum(place, 2)], 0.0) * gate
    return jnp.square(x + back).mean()


def alignment(logits_w, inputs):
    """The log-probability of a label sequence over all alignments (CTC-like)."""
    log_p = jax.nn.log_softmax(inputs[:, 0] @ logits_w)
    labels = jnp.array([0, 1, 0, 2, 0])  # blanks between labels

    def step(alpha, frame):
        stay = alpha
        one = jnp.concatenate([jnp.array([-1e9]), alpha[:-1]])
        return jnp.logaddexp(stay, one) + frame[labels], None

    start = jnp.array([0.0, -1e9, -1e9, -1e9, -1e9])
    alpha, _ = lax.scan(step, start, log_p)
    return -jnp.logaddexp(alpha[-1], alpha[-2])


def graph_attention(w, a, features, source, target):
    """Edge scores normalised over each node's neighbours by segments."""
    h = features @ w
    score = jax.nn.leaky_relu((h[source] + h[target]) @ a, 0.2)
    top = jax.ops.segment_max(score, target, 5)
    weight = jnp.exp(score - lax.stop_gradient(top)[target])
    total = jax.ops.segment_sum(weight, target, 5)
    mixed = jax.ops.segment_sum(weight[:, None] * h[source], target, 5)
    mean = mixed / jnp.where(total > 0, total, 1.0)[:, None]
    return jnp.square(jnp.tanh(mean)).sum()


def ring_buffer(w, inputs):
    """A memory of three slots that is written at a moving place."""

    def step(carry, x):
        memory, at = carry
        written = jnp.tanh(x @ w)[None]
        memory = lax.dynamic_update_slice(memory, written, (at % 3, 0, 0))
        read = lax.dynamic_slice(memory, ((at + 1) % 3, 0, 0), (1, BATCH, WIDTH))
        return (memory, at + 1), read[0]

    start = jnp.zeros((3, BATCH, WIDTH)), jnp.int32(0)
    _, reads = lax.scan(step, start, inputs)
    return jnp.square(reads - inputs).mean()


def best_path(transitions, emissions):
    """The margin of the best path: max over predecessors by scan (Viterbi)."""

    def step(score, emission):
        return (score[:, None] + transitions).max(0) + emission, None

    score, _ = lax.scan(step, emissions[0], emissions[1:])
    return score.max() - (emissions.sum(0) * 0.1).sum()


def dropout(w1, w2, inputs):
    """Random bits come from the program; the gradient goes through what is kept."""
    bits = jax.random.bits(jax.random.key(0, impl="rbg"), (BATCH, 8), jnp.uint32)
    hidden = jnp.tanh(inputs[0] @ w1)
    kept = jnp.where(bits > jnp.uint32(2**31), hidden * 2, 0.0)
    return jnp.square(kept @ w2 - inputs[1]).mean()


PROGRAMS = [
    Case("gru", gru, (*_weights((4, 12), (4, 12), (8,), (4, 3)), INPUTS, integers(2))),
    Case(
        "bidirectional",
        bidirectional,
        (*_weights((8, 4), (8, 4), (8, 3)), INPUTS, integers(2, high=3)),
    ),
    Case(
        "translator",
        translator,
        (*_weights((6, 4), (4, 4), (4, 4), (4, 4), (4, 6)), TOKENS, NEXT),
    ),
    Case(
        "encoder",
        encoder,
        (*_weights((6, 4), (4, 12), (4, 4), (4, 8), (8, 4)), TOKENS, NEXT),
    ),
    Case("window_attention", window_attention, (*_weights((4, 12), (3,)), INPUTS)),
    Case("state_space", state_space, (*_weights((4,), (4, 4), (4, 4)), INPUTS)),
    Case("linear_attention", linear_attention, (*_weights((4, 12)), INPUTS)),
    Case(
        "mixture_of_experts",
        mixture_of_experts,
        (*_weights((4, 3), (3, 4, 4)), array(12, 1, 4, seed=6)),
    ),
    Case("alignment", alignment, (*_weights((4, 3)), INPUTS)),
    Case(
        "graph_attention",
        graph_attention,
        (
            *_weights((4, 4), (4,)),
            array(5, 4),
            integers(9, high=5),
            np.array([0, 1, 2, 2, 0, 1, 3, 3, 0], np.int32),
        ),
    ),
    Case("ring_buffer", ring_buffer, (*_weights((4, 4)), INPUTS)),
    Case("best_path", best_path, (*_weights((3, 3)), array(5, 3, seed=8))),
    Case("dropout", dropout, (*_weights((4, 8), (8, 4)), INPUTS)),
]
