"""Places of the package that open, parse or decode something, found by their calls."""

import ast
import re
from collections.abc import Iterator

from tests.test_forbidden_calls import PACKAGE, ROOT, SOURCES, full_name, imported

READS = re.compile(
    r"""open | io\.open | os\.(open|fdopen|read|readlink|getxattr)
    | json\.(load|loads) | tomllib\.\w+ | csv\.(reader|DictReader)
    | numpy\.(load|loadtxt|genfromtxt|fromfile|frombuffer|memmap)
    | numpy\.lib\.format\.(open_memmap|read_\w+) | ast\.literal_eval | linecache\.\w+
    | safetensors\.(numpy\.|torch\.)?(load|load_file|safe_open|deserialize)
    | pyarrow\.(csv|parquet|json|ipc|feather|dataset|orc)\.
      (read_\w+|open_\w+|ParquetFile|ParquetDataset|dataset)
    | torch\.(load|export\.load|jit\.load) | onnx\.load\w* | PIL\.Image\.open
    | zipfile\.\w+ | tarfile\.\w+ | gzip\.(open|decompress) | zlib\.decompress\w*
    | lzma\.\w+ | bz2\.\w+ | sqlite3\.\w+ | configparser\.\w+ | xml\.\S+ | yaml\.\w+
    | importlib\.metadata\.(entry_points|distributions|files)
    | struct\.unpack\w* | os\.getenv | input | sys\.stdin\.\w+ | urllib\.request\.\w+
    | .*\.load_(pem|der|ssh)_\w+ | socket\.recv_fds | socket\.create_server
    | flwr_datasets\.FederatedDataset
    | fedsuite\.core\.reading\.(opened|read_\w+|parsed|bounded|check_regular|mapped_array)
    | fedsuite\.core\.text\.(read_\w+|toml|decoded)
    | fedsuite\.core\.files\.safetensors_arrays
    | fedsuite\.data\.table_files\.(read_table|arrow_schema|opened_parquet)
    | fedsuite\.data\.pictures\.decode""",
    re.VERBOSE,
)
"""Functions that read, by their full names."""

OWN = ("fedsuite.core.", "fedsuite.data.")
METHODS = {"read_bytes", "read_text", "ParseFromString", "FromString"}
METHODS |= {"recv", "recv_into", "recvfrom", "readline", "readlines", "getresponse"}
"""Methods that read, whatever they are called on."""

STREAMS = {"open", "read"}
"""Methods that read of what has a file's name."""

WRITES = re.compile(r"[wax]b?\+?")
"""Modes of files that are not read."""


def readers(source: str) -> dict[str, set[str]]:
    """Return the reading calls of a source, by the qualified name of who makes them."""
    tree = ast.parse(source)
    names = dict(imported(tree))
    found: dict[str, set[str]] = {}
    for qualified, node in _calls(tree, ""):
        if called := _reading(node, names):
            found.setdefault(qualified or "<module>", set()).add(called)
    return found


def _calls(node: ast.AST, qualified: str) -> Iterator[tuple[str, ast.AST]]:
    waiting = [(qualified, node)]
    while waiting:
        qualified, node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            qualified = f"{qualified}.{node.name}".removeprefix(".")
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call | ast.Attribute):
                yield qualified, child
            waiting.append((qualified, child))


def _reading(node: ast.AST, names: dict[str, str]) -> str:
    """Return what a node reads by, empty if it does not read."""
    if isinstance(node, ast.Attribute) and node.attr == "environ":
        return "os.environ" if full_name(node, names) == "os.environ" else ""
    if not isinstance(node, ast.Call):
        return ""
    called = full_name(node.func, names)
    if called.startswith("fedsuite.") and not called.startswith(OWN):
        return ""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    arguments = [*node.args, *(k.value for k in node.keywords if k.arg == "mode")]
    texts = [a.value for a in arguments if isinstance(a, ast.Constant)]
    if any(isinstance(text, str) and WRITES.fullmatch(text) for text in texts):
        return ""
    if READS.fullmatch(called):
        return called
    # Path.open and file.read, but no class's or stage's own.
    owner = getattr(node.func, "value", None)
    word = getattr(owner, "attr", getattr(owner, "id", ""))
    is_file = word in {"file", "stream", "rfile", "stdin", "stdout", "output", "pipe"}
    if method == "open":
        is_file = word in {"path", "file", "log"}
    return f".{method}" if method in METHODS or (is_file and method in STREAMS) else ""


def places() -> dict[str, set[str]]:
    """Return every place of the package that reads, ``FILE:NAME``, and by what."""
    return {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}": calls
        for path in SOURCES
        for name, calls in readers(path.read_text()).items()
    }


if __name__ == "__main__":
    for place, calls in places().items():
        print(place, *sorted(calls))
    print(ROOT)
