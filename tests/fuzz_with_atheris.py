"""Coverage-guided fuzzing of the record decoder, by hand: needs ``pip install atheris``.

    python -m tests.fuzz_with_atheris -max_total_time=60

Fails, with the input that did it, on anything but our own errors.
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["fedsuite", "numpy.lib"]):
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    from fedsuite.messages.array_records import RecordError, view_array
    from fedsuite.rounds.validation import BadReply, Expected, check_reply
    from fedsuite.workarounds.packed import unpack_reply

EXPECTED = Expected({"arrays": {"weight": ((2, 3), "float32")}})


def decode(data: bytes) -> None:
    """Decode bytes as an array, alone and in a reply."""
    array = Array("float32", (2, 3), "numpy.ndarray", data)
    with suppress(RecordError):
        view_array(array)
    record = ArrayRecord()
    record["weight"] = array
    metrics = MetricRecord({"num-examples": 1})
    with suppress(BadReply, RecordError):
        check_reply(0, RecordDict({"arrays": record, "metrics": metrics}), EXPECTED)
    unpack_packed(data)


def unpack_packed(data: bytes) -> None:
    """Unpack bytes as a packed record, their first half split into its layout."""
    half = len(data) // 2
    words = data[:half].decode(errors="replace").split("\n")
    names, dtypes, shapes = (words[start::3] for start in range(3))
    layout = ConfigRecord({"names": names, "dtypes": dtypes, "shapes": shapes})
    record = ArrayRecord()
    record["packed"] = Array("uint8", (half,), "numpy.ndarray", data[half:])
    unpack_reply(RecordDict({"arrays": record, "arrays.layout": layout}))


if __name__ == "__main__":
    atheris.Setup(sys.argv, decode)
    atheris.Fuzz()
