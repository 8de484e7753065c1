"""Folders of a federation: what is in each, who may read it, and bad names."""

import hashlib
import os
import sys
import tomllib
from pathlib import Path

import pytest
from cryptography import x509

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.deploy.certificates import make_node_key
from fedsuite.deploy.folders import (
    NODES,
    PARTNERS_FILE,
    NodeFolder,
    SuperLinkFolder,
    init_federation,
)
from fedsuite.deploy.programs import (
    superlink_command,
    superlink_helper_command,
    supernode_command,
    supernode_environment,
    supernode_helper_command,
)
from fedsuite.messages.records import PARTNERS
from fedsuite.messages.secrets_shared import public_points
from fedsuite.rounds.secure_rules import masks_demanded

HOSTS = ("fed.example.org", "192.0.2.7")
NAMES = ("hospital-a", "hospital-b")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "federation"
    init_federation(folder, HOSTS, NAMES)
    return folder


def test_both_kinds_of_folder_are_read_back(made: Path) -> None:
    superlink = SuperLinkFolder.load(made / "superlink")
    assert superlink.hosts == HOSTS and superlink.nodes == NAMES
    assert (superlink.port, superlink.fleet_port) == (8000, 8443)
    for index, name in enumerate(NAMES):
        node = NodeFolder.load(made / "nodes" / name)
        assert node.name == name
        assert node.superlink == "fed.example.org:8443"
        assert node.config == {"partition-id": index, "num-partitions": 2}


def test_a_private_key_lies_in_one_folder_alone(made: Path) -> None:
    files = [path for path in made.rglob("*") if path.is_file()]
    private = [path for path in files if b"PRIVATE KEY" in path.read_bytes()]
    assert {path.relative_to(made).as_posix() for path in private} == {
        "authority/ca.key",
        "superlink/server.key",
        "nodes/hospital-a/key",
        "nodes/hospital-b/key",
    }
    assert len({path.read_bytes() for path in private}) == len(private)
    secrets = [path.read_bytes() for path in files if path.name == "superexec.secret"]
    assert len(set(secrets)) == 3 and min(map(len, secrets)) >= 32


def test_nobody_else_on_the_machine_reads_them(made: Path) -> None:
    for path in made.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_node_s_folder_tells_of_no_other(made: Path) -> None:
    for path in (made / "nodes" / "hospital-a").iterdir():
        assert b"hospital-b" not in path.read_bytes()


def test_keys_that_may_join_are_the_nodes_own(made: Path) -> None:
    for name in NAMES:
        known = (made / "superlink" / "nodes" / f"{name}.pub").read_bytes()
        assert known == (made / "nodes" / name / "key.pub").read_bytes()


def test_the_certificate_names_the_hosts(made: Path) -> None:
    pem = (made / "superlink" / "server.pem").read_bytes()
    found = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert "fed.example.org" in found.value.get_values_for_type(x509.DNSName)


def test_another_port_for_nodes(tmp_path: Path) -> None:
    init_federation(tmp_path / "f", ["2001:db8::1"], ["a"], port=9000, fleet_port=9001)
    superlink = SuperLinkFolder.load(tmp_path / "f" / "superlink")
    assert (superlink.port, superlink.fleet_port) == (9000, 9001)
    node = NodeFolder.load(tmp_path / "f" / "nodes" / "a")
    assert node.superlink == "[2001:db8::1]:9001"


@pytest.mark.parametrize(
    ("hosts", "nodes", "words"),
    [
        (["https://fed.example.org"], ["a"], "host 'https://fed.example.org'"),
        (["fed.example.org:8443"], ["a"], "without scheme and port"),
        (["300.1.1.1"], ["a"], "host '300.1.1.1'"),
        ([""], ["a"], "host ''"),
        ([], ["a"], "at least one host"),
        (["fed"], [], "one node"),
        (["fed"], ["../a"], "node '../a'"),
        (["fed"], ["a b"], "node 'a b'"),
        (["fed"], ["a", "b", "A"], "each name must be there once"),
    ],
)
def test_names_that_cannot_be_used(
    hosts: list[str], nodes: list[str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        init_federation(tmp_path / "f", hosts, nodes)
    assert not (tmp_path / "f").exists()


def test_what_is_there_is_not_overwritten(made: Path) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="is not empty"):
        init_federation(made, HOSTS, NAMES)
    assert before == {p: p.read_bytes() for p in made.rglob("*") if p.is_file()}


def a_release(folder: Path) -> Path:
    folder.mkdir()
    wheel = folder / "fedsuite-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    digest = hashlib.sha256(b"a wheel").hexdigest()
    (folder / "requirements.txt").write_text(f"fedsuite==0.1.0 --hash=sha256:{digest}\n")
    return wheel


def test_each_machine_gets_the_wheel_and_its_requirements(tmp_path: Path) -> None:
    wheel = a_release(tmp_path / "dist")
    init_federation(tmp_path / "fed", HOSTS, NAMES, wheel=wheel)
    for machine in ("superlink", *(f"nodes/{name}" for name in NAMES)):
        folder = tmp_path / "fed" / machine / "install"
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
            p.name: p.read_bytes() for p in wheel.parent.iterdir()
        }
    assert not (tmp_path / "fed" / "authority" / "install").exists()


def test_a_wheel_is_handed_out_with_its_own_requirements_alone(tmp_path: Path) -> None:
    wheel = a_release(tmp_path / "dist")
    wheel.write_bytes(b"another wheel")
    with pytest.raises(ConfigError, match=r"has not the hash of fedsuite-0.1.0-py3-none"):
        init_federation(tmp_path / "fed", HOSTS, NAMES, wheel=wheel)
    (wheel.parent / "requirements.txt").unlink()
    with pytest.raises(ConfigError, match=r"there is no .*requirements.txt: `make dist`"):
        init_federation(tmp_path / "fed", HOSTS, NAMES, wheel=wheel)
    wheel.unlink()
    with pytest.raises(ConfigError, match=r"there is no .*whl: `make dist`"):
        init_federation(tmp_path / "fed", HOSTS, NAMES, wheel=wheel)
    assert not (tmp_path / "fed").exists()


def test_folders_that_are_none(tmp_path: Path, made: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no superlink.toml: give the superlink"):
        SuperLinkFolder.load(tmp_path)
    with pytest.raises(ConfigError, match=r"holds no node.toml: give the node's folder"):
        NodeFolder.load(made / "superlink")
    node = made / "nodes" / "hospital-a"
    (node / "key").unlink()
    with pytest.raises(ConfigError, match="lacks key: copy the whole folder"):
        NodeFolder.load(node)
    (made / "superlink" / "superlink.toml").write_text("hosts = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        SuperLinkFolder.load(made / "superlink")
    (made / "superlink" / "superlink.toml").write_text("port = 3")
    with pytest.raises(ConfigError, match="lacks hosts"):
        SuperLinkFolder.load(made / "superlink")


def test_a_site_adds_to_its_own_configuration(made: Path) -> None:
    node = made / "nodes" / "hospital-a"
    text = (node / "node.toml").read_text()
    (node / "node.toml").write_text(text + 'data = "/srv/it\'s \\"here\\""\n')
    folder = NodeFolder.load(node)
    assert folder.config["data"] == '/srv/it\'s "here"'
    command = supernode_command(folder, 9094)
    config = command[command.index("--node-config") + 1]
    assert "partition-id=0" in config and "data=" in config
    (node / "node.toml").write_text(text + "data = [1]\n")
    with pytest.raises(ConfigError, match="node-config key data holds a list"):
        NodeFolder.load(node)


def test_no_program_speaks_in_clear_to_another_machine(made: Path) -> None:
    superlink = SuperLinkFolder.load(made / "superlink")
    node = NodeFolder.load(made / "nodes" / "hospital-a")
    link = superlink_command(superlink, "0.0.0.0")
    assert "--insecure" not in link and "--enable-supernode-auth" in link
    assert "--insecure" not in superlink_helper_command(superlink)
    assert "--insecure" not in supernode_command(node, 9094)
    beside = supernode_helper_command(node, 9094)
    # It reaches its own machine alone.
    assert beside[beside.index("--runtime-api-address") + 1].startswith("127.0.0.1:")
    for command in (link, beside):
        assert "--superexec-auth-secret-file" in command


def test_files_are_toml_that_others_can_read(made: Path) -> None:
    for path in made.rglob("*.toml"):
        assert tomllib.loads(path.read_text())


def test_a_node_may_do_without_a_process_that_has_loaded_torch(made: Path) -> None:
    node = made / "nodes" / "hospital-a"
    text = (node / "node.toml").read_text()
    on_linux = sys.platform == "linux"
    assert ("beside" in supernode_helper_command(NodeFolder.load(node), 9094)) == on_linux
    (node / "node.toml").write_text("preload = false\n" + text)
    command = supernode_helper_command(NodeFolder.load(node), 9094)
    assert command[:2] == ["flower-superexec", "--insecure"]
    (node / "node.toml").write_text('preload = "no"\n' + text)
    with pytest.raises(ConfigError, match="key preload is 'no': expected true or false"):
        NodeFolder.load(node)


def test_where_forks_are_not_safe_the_superexec_is_flowers(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    node = NodeFolder.load(made / "nodes" / "hospital-a")
    assert supernode_helper_command(node, 9094)[0] == "flower-superexec"


def test_nodes_find_this_very_fedsuite(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeFolder.load(made / "nodes" / "hospital-a")
    monkeypatch.setenv("PYTHONPATH", "relative")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment = supernode_environment(node)
    home = Path(fedsuite.__file__).resolve().parents[1]
    installed = home.name == "site-packages"
    path = environment["PYTHONPATH"].split(os.pathsep)
    assert installed or path[0] == str(home)
    # A node's programs work in a folder of their own.
    assert path[-1] == os.path.abspath("relative")
    # How many threads a site uses is its own affair.
    assert environment["OMP_NUM_THREADS"] == "3"


def test_a_site_lists_its_partners_by_their_public_keys(made: Path) -> None:
    node = sorted((made / NODES).iterdir())[0]
    assert PARTNERS not in NodeFolder.load(node).config
    keys = [make_node_key(f"hospital {k}, the {k}th").public.decode() for k in range(3)]
    (node / PARTNERS_FILE).write_text("# agreed in March\n" + "\n".join(keys))
    config = NodeFolder.load(node).config
    assert public_points(str(config[PARTNERS]).split(",")) == public_points(keys)
    assert masks_demanded(config, {})
    for text, words in (
        ("hospital-b\n", "'hospital-b' is no public key"),
        ("# nobody\n", "names nobody"),
    ):
        (node / PARTNERS_FILE).write_text(text)
        with pytest.raises(ConfigError, match=words):
            NodeFolder.load(node)
