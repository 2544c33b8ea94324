"""What is compiled for Vulkan runs right, where there is a device.

pcp-vjp ─► the passes for `vulkan` ─► the device, equal to jax at 1e-4
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.models import jax_small, sequence, vision
from helpers.oracles.jax_gradients import (
    Case,
    array,
    as_given,
    assert_near,
    lowered,
    reference_vjp,
    transformed,
    wrt_option,
)
from helpers.servers.vulkan import Vulkan, VulkanFailed
from jax import lax

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse

TOLERANCE = 1e-4

ZOO = {
    case.name: replace(case, close=assert_near, tolerance=TOLERANCE)
    for models in (jax_small, sequence, vision)
    for case in models.PROGRAMS
}
QUICK = ("mlp",)


def compiled(text: str) -> bytes:
    """A bundle of one function for the device."""
    options = CompileOptions(targets=("vulkan",), mode="forward", timeout=300)
    return driver.compile(parse(text), options).to_bytes()


def check(case: Case, vulkan: Vulkan) -> None:
    """Results and gradients of a case are jax's."""
    results, seeds, gradients = reference_vjp(case)
    text = transformed(lowered(case), f"pcp-vjp{{{wrt_option(case)}}}")
    arguments = [as_given(x) for x in case.args]
    ours = vulkan.run(compiled(text), [*arguments, *seeds])
    for i, (a, b) in enumerate(zip(ours, [*results, *gradients], strict=True)):
        case.compare(a, b, case.tolerance, f"value {i}")


@pytest.mark.parametrize("name", QUICK)
def test_a_gradient(name: str, vulkan: Vulkan) -> None:
    check(ZOO[name], vulkan)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [n for n in ZOO if n not in QUICK])
def test_every_gradient(name: str, vulkan: Vulkan) -> None:
    check(ZOO[name], vulkan)


@pytest.mark.slow  # a program more
def test_a_stable_sort_keeps_the_order_of_equals(vulkan: Vulkan) -> None:
    keys = np.random.default_rng(0).integers(0, 4, (3, 40)).astype(np.float32)
    text = jax.jit(lambda x: jnp.argsort(x, axis=1)).lower(keys).as_text()
    (found,) = vulkan.run(compiled(text), [keys])
    np.testing.assert_array_equal(found, np.argsort(keys, 1, kind="stable"))


@pytest.mark.slow  # a program more
def test_a_grouped_convolution(vulkan: Vulkan) -> None:
    """IREE's own gives zeros (pcp-ungroup-convolutions)."""
    image, kernel = array(1, 4, 4, 4), array(2, 2, 2, 4)

    def convolve(x, k):
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=2
        )

    text = jax.jit(convolve).lower(image, kernel).as_text()
    (found,) = vulkan.run(compiled(text), [image, kernel])
    assert_near(found, convolve(image, kernel), TOLERANCE, "grouped")


@pytest.mark.slow  # a program more
def test_a_mask_is_read_from_memory(vulkan: Vulkan) -> None:
    """As an array in each thread, lavapipe unrolls it for minutes."""
    scores, mask = array(4, 32, 16), np.triu(np.ones((32, 32), bool), 1)

    def attend(x):
        return jnp.where(mask, -1e9, jnp.einsum("bik,bjk->bij", x, x)).max(-1)

    text = jax.jit(attend).lower(scores).as_text()
    (found,) = vulkan.run(compiled(text), [scores])
    assert_near(found, attend(scores), TOLERANCE, "masked")


def test_a_device_that_is_not_there(vulkan: Vulkan) -> None:
    zero = np.zeros((), np.float32)
    text = jax.jit(jnp.sin).lower(zero).as_text()
    with pytest.raises(VulkanFailed, match=r"no device 'vulkan://99' here; vulkan://0"):
        vulkan.run(compiled(text), [zero], device="vulkan://99")
