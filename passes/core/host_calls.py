"""Calls of the library of the machine on which JAX traced a program."""

from pcp.dialect.bindings import ir

#: How their targets begin: LAPACK on a CPU, cuSOLVER and hipSOLVER on GPUs.
_LIBRARIES = ("lapack_", "blas_", "cusolver_", "hipsolver_", "cu_", "hip_")

ADVICE = (
    "JAX wrote linear algebra for the machine that it traced on; export the function "
    "with pcp.from_jax, or pcp export --jax, which write it out for any"
)


def is_host_call(op: ir.Operation) -> bool:
    """Whether a `stablehlo.custom_call` is one of them."""
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    return target.startswith(_LIBRARIES)
