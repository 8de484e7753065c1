"""A run with its model, which ``fedsuite.run`` and ``fedsuite.load_run`` return."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsuite.results import reader
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.reader import Client

if TYPE_CHECKING:
    from torch import nn


class Run(reader.Run):
    """A run, read from its folder, and the models that it ended with."""

    def model(self) -> "nn.Module":
        """Return the final model of all clients, in evaluation mode on the CPU.

        It takes scaled inputs; :meth:`predict` scales what people have.

        Raises
        ------
        RunError
            If the method ends without one model for all: then see :meth:`client_model`.
        """
        from fedsuite.engines.trained.network import global_model

        return global_model(self)

    def client_model(self, client: Client) -> "nn.Module":
        """Return the model that a client was last scored with, whatever the method.

        Personal parts, mixtures and factors are put together; it is in evaluation mode, on
        the CPU.

        Parameters
        ----------
        client
            The client's number, or its name where clients are sites.

        Raises
        ------
        RunError
            If there is no such client, or a part of its model is not on this machine.
        """
        from fedsuite.engines.trained.replay import client_model

        return client_model(self, client)

    def predict(self, data: Any, client: Client | None = None) -> Any:
        """Return what the model predicts for each row of data.

        Columns may come in any order, and what training did to its inputs is done here.

        Parameters
        ----------
        data
            A DataFrame, a mapping of columns, an array ``[rows, ...]`` in the data set's
            raw units, or the path of a table, a picture, or a folder of such.
        client
            Client whose model predicts; None is the model of all.

        Returns
        -------
        pandas.DataFrame or dict
            Column ``prediction``, the name of a class, and one ``probability NAME`` for
            each class; with ``row``, the file's name, for pictures. Without pandas a
            dictionary of NumPy arrays.

        Raises
        ------
        FedsuiteError
            If the data do not fit the model, in one line.
        """
        from fedsuite.engines.trained.predict import predict, with_pandas

        return with_pandas(predict(self, data, client))

    def export(
        self, file: str | Path, format: str = "torch", client: Client | None = None
    ) -> Path:
        """Write the model to a file that needs no fedsuite, and its card beside it.

        Parameters
        ----------
        file
            File to write; the card of ``model.pt2`` is ``model-card.md``.
        format
            ``torch`` (``torch.export``), ``onnx`` or ``safetensors`` (arrays alone).
        client
            Client whose model is written; None is the model of all.

        Returns
        -------
        Path
            The file.
        """
        from fedsuite.engines.trained.export import export

        return export(self, Path(file), format, client)

    @property
    def facts(self) -> ModelFacts:
        """What the model takes and gives: columns, classes, scaling, shape."""
        return ModelFacts.read(self.path)
