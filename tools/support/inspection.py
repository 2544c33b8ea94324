"""What a run is given, looked at before anything is compiled for it."""

from collections.abc import Callable
from typing import Any

from pcp.tools.support.model_check import check_model
from pcp.training.config.experiment import Experiment
from pcp.training.data.corpus import Corpus
from pcp.training.storage import first_values
from pcp.training.trainer.bundle_checks import data_inputs


def read_model(path: str) -> Any:
    """The module of a model's file."""
    from pcp.dialect.context import read

    check_model(path)
    return read(path)


def inspector(experiment: Experiment) -> Callable[[], Corpus | None]:
    """Opens the data as the model, or a bundle, takes them; `inspected`."""

    def inspect() -> Corpus | None:
        path = experiment.model_path
        if path.endswith(".pcp"):
            from pcp.bundle import Bundle

            return Corpus(experiment, data_inputs(Bundle.read(path).manifest))
        return inspected(experiment, read_model(path))

    return inspect


def inspected(experiment: Experiment, model: Any) -> Corpus | None:
    """The data; refuses weights and data that the model cannot take.

    None for a model that cannot be trained: its compiler says why.
    """
    from pcp.compiler import signature
    from pcp.compiler.options import CompileOptions

    entry = CompileOptions.entry
    loss, *_ = (*signature.functions(model, entry, "train")[entry].results, None)
    if loss is None or loss.shape:
        return None
    parameters = signature.parameters(model, entry)
    # What is trained of a model with adapters, or in part, the compiler says.
    if experiment.initial_weights and not (experiment.lora or experiment.freeze):
        first_values.check_shapes(experiment.initial_weights, parameters)
    corpus = Corpus(experiment, signature.data_inputs(model, entry))
    corpus.check_vocabulary([p.shape for p in parameters])
    corpus.check_rows(signature.table_rows(model, entry))
    return corpus
