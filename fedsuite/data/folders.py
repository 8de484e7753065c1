"""Data sets that are read from a local folder alone, for no hub has them."""

from pathlib import Path

from fedsuite.core.errors import DataError
from fedsuite.data.specs import DatasetSpec


def dataset_folder(spec: DatasetSpec, data_dir: Path | None) -> Path:
    """Return the folder of a data set.

    Raises
    ------
    DataError
        If there is none; says what to put where.
    """
    folder = data_dir / spec.folder if data_dir is not None else None
    if folder is None or not folder.is_dir():
        missing = f"no folder {folder}" if folder is not None else "no data folder is named"
        raise DataError(
            f"data set {spec.name}: {missing}, and no hub has it; put "
            f"{', '.join(spec.file_patterns)} into FOLDER/{spec.folder} and name FOLDER "
            'with data-dir = "FOLDER" or FEDSUITE_DATA'
        )
    return folder


def dataset_file(spec: DatasetSpec, data_dir: Path | None, name: str) -> Path:
    """Return one file of a data set, which must be there."""
    file = dataset_folder(spec, data_dir) / name
    if not file.is_file():
        raise DataError(
            f"data set {spec.name}: no file {file}; its folder should hold "
            f"{', '.join(spec.file_patterns)}"
        )
    return file


def file_identity(file: Path) -> str:
    """Return what changes when a file does: its place, size and time."""
    status = file.stat()
    return f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
