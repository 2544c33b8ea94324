"""Element types by name."""

import ml_dtypes
import numpy as np
import pytest

from pcp.errors import BundleError, ProtocolError
from pcp.runtime.memory.dtypes import bits_dtype, numpy_dtype, sent_dtype


def test_types_of_a_program() -> None:
    assert numpy_dtype("ui16") == np.uint16
    assert numpy_dtype("bf16") == ml_dtypes.bfloat16
    assert bits_dtype("f8E5M2") == np.uint8
    with pytest.raises(BundleError, match="no arrays of i3"):
        numpy_dtype("i3")


@pytest.mark.parametrize("kind", [np.bool_, np.complex64, ml_dtypes.float8_e4m3fn])
def test_types_that_peers_send_by_name(kind) -> None:
    assert sent_dtype(np.dtype(kind).name) == kind


@pytest.mark.parametrize("name", ["object", "O", "float99", "finfo", None, 3, ["f4"]])
def test_what_is_no_type_is_refused(name) -> None:
    with pytest.raises(ProtocolError, match="which are none here"):
        sent_dtype(name)
