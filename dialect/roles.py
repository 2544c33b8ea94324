"""What a training program consists of: the roles of `@main`'s arguments and results.

Each argument has a name (`pcp.name`) and a role (`pcp.role`):

    param   trained: it has a gradient and optimizer state, is averaged and saved
    frozen  read and never written: a base model under LoRA, a teacher. No gradient; its
            values are loaded once, are in no checkpoint, and are no constant of the IR
    state   read and written by the step: statistics of batch norm, a moving average.
            A result of the same name and type is its new value
    key     randomness, one tensor<2xui32>: the step's bits follow from it alone
    data    the sample

The results are the loss, a scalar; then, in any order, further scalars, which are
metrics, and the new state. A result says in `pcp.name` which tensor it is, and may have
a role: `loss`, `metric`, `state`, `grad` in a program that is differentiated already,
or `result` for what is none of these.

Workers that train apart have states of their own until a round ends. `pcp.average` on
the argument says what becomes of them: `mean` by tokens, `max`, `sum` of what each
added since the round began, or `first`, that of rank 0. Left out, it is the mean of
floats and the maximum of integers.

A model may compute another function of the same arguments when it is evaluated: without
dropout, with the statistics that batch norm has gathered. `pcp.evaluation` on `@main`
names that function, a private one with arguments of the same types in the same order,
which have `@main`'s names and roles. It returns the loss and the metrics that `@main`
returns, and validation calls it. Without one, validation calls `@main`.

In the functions of a training bundle `state` is the optimizer's, as it always was; that
of the program has the role `model_state` there.
"""

from pcp.dialect.bindings import ir

ROLE, NAME, INIT, AVERAGE = "pcp.role", "pcp.name", "pcp.init", "pcp.average"

ROLES = ("param", "data", "state", "frozen", "key")
"""Of `@main`'s arguments."""

OF_THE_MODEL = ("param", "frozen", "state")
"""Of the arguments that a model brings values for."""

EVALUATION = "pcp.evaluation"
"""On `@main`: the function that validation calls in its place."""

MODEL_STATE = "model_state"
"""In a training bundle, the state of the program."""

OF_PARAMETERS = ("state", "outer", "private")
"""In a training bundle, of what is kept for a parameter `w` under a name as `m.w`."""

LIKE_PARAMETERS = ("param", "grad", "anchor", *OF_PARAMETERS)
"""In a training bundle, of what lies where its parameter does."""

RESULTS = ("loss", "metric", "state", "grad", "result")
"""Of `@main`'s results."""

AVERAGES = ("mean", "max", "sum", "first")

STAGE = "pcp.stage"
"""On an op or a call: its pipeline stage. On a result: the stage that gets it."""

GIVEN = "given"
"""The `pcp.init` of state that no seed makes: its first value comes with weights."""


KEY = "tensor<2xui32>"
"""The type of a key."""


def parameter_of(name: str) -> str:
    """The parameter for which a tensor of the roles `OF_PARAMETERS` is kept."""
    return name.partition(".")[2]


def is_key(type_: ir.Type) -> bool:
    """Whether it is the type of a key."""
    return str(type_) == KEY
