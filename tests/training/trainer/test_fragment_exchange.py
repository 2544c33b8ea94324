"""Streaming DiLoCo through compiled bundles: what it reduces to, and exact shifts."""

import numpy as np
import pytest
from helpers.models.closed_form import (
    BLOCK,
    RATE,
    batches,
    bundle,
    gradients,
    parameters,
    play,
    same_bits,
)

from pcp.dialect.collectives import CODECS
from pcp.passes.training.outer.spec import WIRES
from pcp.runtime.compression.codecs import codec

OUTER = "lr=0.7,momentum=0.9"
PLAIN = "wire=f32,alpha=0,tau=0"
H, ROUNDS = 4, 3


def data(members: int, rounds: int = ROUNDS) -> list:
    return [batches(H * rounds, worker) for worker in range(members)]


def test_one_fragment_without_delay_is_diloco_bit_for_bit() -> None:
    tokens = [3, 1, 2]
    streaming = bundle("quadratic", f"streaming_diloco{{fragments=1,{PLAIN},{OUTER}}}")
    diloco = bundle("quadratic", f"diloco{{{OUTER}}}")
    found = play(streaming, data(3), ROUNDS, tokens=tokens)
    wanted = play(diloco, data(3), ROUNDS, tokens=tokens)
    for member in range(3):
        for a, b in zip(found[member], wanted[member], strict=True):
            assert same_bits(a, b)


@pytest.mark.slow  # one does, above
def test_fragments_that_come_back_together_are_diloco() -> None:
    options = f"fragments=2,{PLAIN},{OUTER},together=true"
    found = play(bundle("quadratic", f"streaming_diloco{{{options}}}"), data(2), ROUNDS)
    wanted = play(bundle("quadratic", f"diloco{{{OUTER}}}"), data(2), ROUNDS)
    for a, b in zip(found[0], wanted[0], strict=True):
        assert same_bits(a, b)


def local(trainer, number: int) -> np.ndarray:
    """A worker's own parameters after a round."""
    names = ("h.0.w", "h.1.v")
    return np.concatenate([trainer.private[f"local.{n}"].copy() for n in names])


@pytest.mark.slow  # a program more
def test_with_alpha_1_workers_are_independent() -> None:
    code = bundle("quadratic", "streaming_diloco{fragments=2,tau=1,alpha=1.0,wire=f32}")
    together = play(code, data(2), ROUNDS, watch=local)
    for member in range(2):
        alone = play(code, [data(2)[member]], ROUNDS, watch=local)[0]
        inner = by_hand_quadratic(data(2)[member])
        for a, b, c in zip(together[member], alone, inner, strict=True):
            assert a.tobytes() == b.tobytes()
            np.testing.assert_allclose(a, c, rtol=0, atol=2e-6)


def by_hand_quadratic(mine: list) -> list:
    """The inner optimizer alone, from zeros: its parameters after each round."""
    theta, found = np.zeros(2 * BLOCK), []
    for step, batch in enumerate(mine, 1):
        goal = np.concatenate([*gradients(batch).values()]).astype(np.float64)
        theta = theta - RATE * (theta - goal)
        if step % H == 0:
            found.append(theta)
    return found


@pytest.mark.slow
def test_one_worker_with_gamma_1_is_the_inner_optimizer_alone() -> None:
    options = f"fragments=2,{PLAIN},lr=1.0,momentum=0.0"
    found = play(
        bundle("quadratic", f"streaming_diloco{{{options}}}"),
        data(1),
        ROUNDS,
        watch=local,
    )
    for own, wanted in zip(found[0], by_hand_quadratic(data(1)[0]), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=2e-6)


def test_with_a_delay_and_alpha_0_a_fragment_loses_the_steps_of_the_delay() -> None:
    """Linear loss: exactly the gradients from leaving to coming back are lost."""
    options = "fragments=2,tau=1,alpha=0,wire=f32,lr=1.0,momentum=0.0"
    found = play(bundle("linear", f"streaming_diloco{{{options}}}"), data(1), ROUNDS)[0]
    theta = {"h.0.w": np.zeros(BLOCK), "h.1.v": np.zeros(BLOCK)}
    for number, state in enumerate(found):
        mine = data(1)[0][number * H : (number + 1) * H]
        # Fragment 0 leaves after step 1 and is back after 2: step 2 is lost, and
        # steps 3 and 4 are with the worker, not in the anchor yet.
        kept = {"h.0.w": [0], "h.1.v": [0, 1, 2]}
        carried = {"h.0.w": [2, 3], "h.1.v": []}
        for name, steps in kept.items():
            before = data(1)[0][(number - 1) * H : number * H] if number else []
            late = [before[i] for i in carried[name] if before]
            for batch in [*late, *(mine[i] for i in steps)]:
                theta[name] = theta[name] - RATE * gradients(batch)[name]
            np.testing.assert_allclose(
                state[f"parameter/{name}"], theta[name], rtol=0, atol=1e-5
            )


@pytest.mark.slow
def test_every_gradient_counts_once_when_nothing_is_delayed() -> None:
    """Linear loss, two workers, γ = 1: fragment 0 is half a round ahead of the end."""
    options = f"fragments=2,{PLAIN},lr=1.0,momentum=0.0"
    found = play(bundle("linear", f"streaming_diloco{{{options}}}"), data(2), ROUNDS)
    for number in range(ROUNDS):
        until = {"h.0.w": number * H + H // 2, "h.1.v": (number + 1) * H}
        for name, stop in until.items():
            moved = [gradients(b)[name] for mine in data(2) for b in mine[:stop]]
            wanted = -RATE * np.sum(moved, axis=0, dtype=np.float64) / 2
            for member in range(2):
                state = found[member][number][f"parameter/{name}"]
                np.testing.assert_allclose(state, wanted, rtol=0, atol=1e-5)


def test_all_members_agree_on_what_came_in_4_bits() -> None:
    """E3M0 on the wire: the same bits everywhere, near what plain floats give."""
    options = f"fragments=2,tau=1,alpha=0.5,{OUTER}"
    coded = play(bundle("quadratic", f"streaming_diloco{{{options}}}"), data(3), ROUNDS)
    plain = bundle("quadratic", f"streaming_diloco{{{options},wire=f32}}")
    wanted = play(plain, data(3), ROUNDS)
    for number in range(ROUNDS):
        assert same_bits(coded[0][number], coded[1][number])
        assert same_bits(coded[0][number], coded[2][number])
    one, other = parameters(coded[0][0]), parameters(wanted[0][0])
    moved = np.abs(other).max()
    assert 0 < np.abs(one - other).max() < 0.8 * moved


@pytest.mark.slow  # a program more
def test_the_bytes_of_a_round_are_those_of_the_codes() -> None:
    """Per exchange and member: 2 (M - 1) / M of the codes, and small change."""
    sent: list = []

    def watch(trainer, number: int) -> int:
        sent.append(trainer.functions.program.communicator.bytes_sent)
        return 0

    code = bundle(
        "quadratic", f"streaming_diloco{{fragments=2,tau=1,alpha=0.5,{OUTER}}}"
    )
    play(code, data(2), ROUNDS, watch=watch)
    a_round = (max(sent) - min(sent)) / (ROUNDS - 1)
    codes = 2 * (BLOCK // 2 + 4 * 2)  # two halves of each fragment, with their scales
    assert codes < a_round < codes + 1500


def test_every_wire_is_a_codec_of_the_runtime() -> None:
    assert set(WIRES) == {"f32", *CODECS}
    assert [codec(name).name for name in CODECS] == [*CODECS]
