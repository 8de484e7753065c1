"""Local folders of data sets that no hub has."""

from pathlib import Path

from fedsuite.core.errors import DataError
from fedsuite.data.specs import DatasetSpec


def dataset_folder(spec: DatasetSpec, data_dir: Path | None) -> Path:
    """Return the folder of a data set; refuse a missing one."""
    folder = data_dir / spec.folder if data_dir is not None else None
    if folder is None or not folder.is_dir():
        raise missing_folder(spec, folder, "no hub has it")
    return folder


def missing_folder(spec: DatasetSpec, folder: Path | None, reason: str) -> DataError:
    """Return the error for a data set that is on no hub, for a reason, nor here."""
    missing = f"no folder {folder}" if folder is not None else "no data folder is named"
    files = ", ".join(spec.file_patterns) + (f" of {spec.hub_id}" if spec.hub_id else "")
    return DataError(
        f"data set {spec.name}: {missing}, and {reason}; put {files} into "
        f'FOLDER/{spec.folder} and name FOLDER with data-dir = "FOLDER" or FEDSUITE_DATA'
    )


def dataset_file(spec: DatasetSpec, data_dir: Path | None, name: str) -> Path:
    """Return one existing file of a data set."""
    file = dataset_folder(spec, data_dir) / name
    if not file.is_file():
        raise DataError(
            f"data set {spec.name}: no file {file}; its folder should hold "
            f"{', '.join(spec.file_patterns)}"
        )
    return file


def file_identity(file: Path) -> str:
    """Return a file's path, size and time, which change with the file."""
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    return f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
