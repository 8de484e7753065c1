"""The files in deploy/: their commands exist in Flower, and what they name is there."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedsuite
from fedsuite.engines.flower import fleet_is_grpc
from fedsuite.engines.processes import executable

DEPLOY = Path(fedsuite.__file__).parents[1] / "deploy"
README = (DEPLOY / "README.md").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]

HANDED_OUT = {
    "superlink": {"ca.crt", "server.pem", "server.key", "superexec.secret"},
    "site": {"ca.crt", "key", "superexec.secret"},
}
"""Files that `fedsuite deploy init` makes in the folders that programs run with."""


@cache
def flags_of(program: str) -> dict[str, bool]:
    """Return the flags of a program of Flower, and whether each takes a value."""
    done = subprocess.run(
        [executable(program), "--help"], capture_output=True, text=True, check=True
    )
    usage = " ".join(done.stdout.partition("options:")[0].split())
    taken = {
        flag: bool(value) for flag, value in re.findall(r"(--[a-z-]+)( [A-Z{])?", usage)
    }
    assert "--insecure" in taken, done.stdout
    return taken


def check_command(program: str, arguments: list[str]) -> set[str]:
    """Fail if an argument is none of the program's; return the flags that are given."""
    known, given = flags_of(program), set()
    rest = list(arguments)
    while rest:
        flag, sign, _ = rest.pop(0).partition("=")
        assert flag in known, f"{program} has no {flag}"
        given.add(flag)
        if known[flag] and not sign:
            assert rest, f"{program} {flag} has no value"
            assert not rest.pop(0).startswith("--")
        assert known[flag] or not sign, f"{program} {flag} takes no value"
    return given


def check_secured(program: str, given: set[str]) -> None:
    """Fail if a program of Flower is not encrypted, or lets anybody in."""
    assert "--superexec-auth-secret-file" in given, "the port is open to other programs"
    if program != "flower-superexec":
        assert "--insecure" not in given
        assert "--isolation" in given
    if program == "flower-superlink":
        assert {"--enable-supernode-auth", "--ssl-keyfile", "--database"} <= given
    if program == "flower-supernode":
        assert {"--auth-supernode-private-key", "--root-certificates"} <= given


def expand(text: str, **values: str) -> str:
    """Replace compose's ``${NAME:-default}``."""
    return re.sub(
        r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: values.get(m[1], m[2] or ""), text
    )


# Containers


@pytest.mark.parametrize("name", SERVICES)
def test_commands_of_the_services_exist(name: str) -> None:
    service = SERVICES[name]
    program = next(iter(service["entrypoint"]), "")
    if program.startswith("flower-"):
        check_secured(program, check_command(program, service["command"]))
    else:
        assert program in ("", "nginx")


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_names_is_there(name: str) -> None:
    service = SERVICES[name]
    assert len(service["profiles"]) == 1
    for secret in service.get("secrets", []):
        assert secret in COMPOSE["secrets"]
    others = {*service.get("depends_on", []), service.get("network_mode", "")} - {""}
    for other in others:
        assert other.removeprefix("service:") in SERVICES
    for volume in service.get("volumes", []):
        source = expand(volume.replace(":-", "§")).replace("§", ":-").split(":")[0]
        if source.startswith("./"):
            assert (DEPLOY / source).exists() or "{" in volume, source
    used = set(re.findall(r"/run/secrets/([\w.-]+)", " ".join(service["command"])))
    assert used <= set(service.get("secrets", [])), "a command reads what is not mounted"


def test_secrets_are_the_files_that_init_makes() -> None:
    used: dict[str, set[str]] = {"superlink": set(), "site": set()}
    for secret in COMPOSE["secrets"].values():
        path = Path(expand(secret["file"], FEDERATION="F", SITE="S"))
        kind = {"F/superlink": "superlink", "F/nodes/S": "site"}[str(path.parent)]
        used[kind].add(path.name)
    assert used == HANDED_OUT


def test_every_variable_has_a_default_and_is_explained() -> None:
    text = (DEPLOY / "compose.yml").read_text()
    assert not re.findall(r"\$\{\w+\}", text), "compose would warn and take nothing"
    for name in set(re.findall(r"\$\{(\w+)", text)) - {"FLWR_VERSION", "PORT"}:
        assert re.search(rf"\b{name}\b", README), name


def test_the_superlink_is_reached_through_the_door_alone() -> None:
    published = {name for name, service in SERVICES.items() if "ports" in service}
    assert published == {"superlink"}
    assert SERVICES["superlink"]["ports"] == ["${PORT:-8443}:8443"]
    command = SERVICES["superlink"]["command"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert SERVICES["door"]["network_mode"] == "service:superlink"


def test_apps_see_no_private_key_and_nodes_no_data() -> None:
    for name in ("serverapps", "clientapps", "admin"):
        assert not {"server.key", "site.key"} & set(SERVICES[name]["secrets"])
        assert "superexec" in SERVICES[name]["image"]
    assert not any("/data" in v for v in SERVICES["supernode"].get("volumes", []))
    assert any(v.endswith(":/data:ro") for v in SERVICES["clientapps"]["volumes"])


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_without_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service["image"].endswith(":latest")


def test_node_config_is_read_by_flower() -> None:
    from flwr.common.config import parse_config_args

    command = SERVICES["supernode"]["command"]
    text = expand(
        command[command.index("--node-config") + 1],
        SITE="hospital-a",
        NODE_CONFIG='label-column="died"',
    )
    found = parse_config_args([text])
    assert found == {"site": "hospital-a", "data": "/data", "label-column": "died"}


def test_the_image_is_built_of_files_that_are_there() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    for source in (source for sources in copied for source in sources):
        assert (DEPLOY.parent / source).exists(), source
    assert "FROM flwr/superexec:${FLWR_VERSION}" in lines
    assert not any(line.startswith("USER root") for line in lines)
    build = SERVICES["clientapps"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert (context / build["dockerfile"]).is_file()


def test_flowers_commands_find_the_superlink() -> None:
    config = tomllib.loads((DEPLOY / "docker" / "flwr-config.toml").read_text())
    name = config["superlink"]["default"]
    command = SERVICES["superlink"]["command"]
    port = command[command.index("--port") + 1]
    assert config["superlink"][name]["address"] == f"127.0.0.1:{port}"
    assert config["superlink"][name]["root-certificates"] == "/run/secrets/ca.crt"


# The door


def door() -> str:
    text = (DEPLOY / "nginx.conf").read_text()
    text = re.sub(r"#.*", "", text)
    assert text.count("{") == text.count("}")
    return text


def test_the_door_opens_to_the_fleet_api_alone() -> None:
    places = dict(re.findall(r"location (\S+) \{([^}]*)\}", door()))
    assert set(places) == {"/v1/fleet/", "/"}
    assert "return 404;" in places["/"]
    assert "proxy_pass https://127.0.0.1:8000;" in places["/v1/fleet/"]
    assert "proxy_ssl_verify on;" in places["/v1/fleet/"]


@pytest.mark.skipif(fleet_is_grpc(), reason="SuperNodes have a port to themselves")
def test_supernodes_need_nothing_but_the_fleet_api() -> None:
    from flwr.supernode import fleet_http_client

    source = Path(fleet_http_client.__file__).read_text()
    paths = set(re.findall(r'path="(/[^"]+)"', source))
    assert len(paths) > 5
    assert all(path.startswith("/v1/fleet/") for path in paths)


def test_the_doors_keys_are_mounted() -> None:
    needed = set(re.findall(r"/run/secrets/([\w.-]+)", door()))
    assert needed == {"ca.crt", "server.pem", "server.key"}
    assert needed <= set(SERVICES["door"]["secrets"])


# systemd


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SECTIONS = {
    "Unit": "Description Documentation Wants After StartLimitIntervalSec StartLimitBurst",
    "Service": "Type User Group Environment EnvironmentFile WorkingDirectory ExecStart "
    "Restart RestartSec KillMode TimeoutStopSec StateDirectory StateDirectoryMode UMask "
    "NoNewPrivileges CapabilityBoundingSet AmbientCapabilities ProtectSystem ProtectHome "
    "PrivateTmp PrivateDevices PrivateUsers ProtectClock ProtectHostname "
    "ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectControlGroups "
    "ProtectProc RestrictAddressFamilies RestrictNamespaces RestrictRealtime "
    "RestrictSUIDSGID LockPersonality RemoveIPC SystemCallArchitectures SystemCallFilter "
    "SystemCallErrorNumber",
    "Install": "WantedBy",
}


def directives(unit: Path) -> dict[str, list[tuple[str, str]]]:
    """Return a unit's directives by section; fails on a line that is none."""
    found: dict[str, list[tuple[str, str]]] = {}
    section: list[tuple[str, str]] = []
    for line in unit.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), [])
            continue
        key, sign, value = line.partition("=")
        assert sign, line
        section.append((key, value))
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_hold_known_directives(unit: Path) -> None:
    found = directives(unit)
    assert set(found) == set(SECTIONS)
    for section, pairs in found.items():
        assert {key for key, _ in pairs} <= set(SECTIONS[section].split())
    service = dict(found["Service"])
    assert service["Restart"] == "always"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["User"] == "fedsuite"
    variables = set(re.findall(r"\$\{(\w+)\}", service["ExecStart"]))
    given = {value.split("=")[0] for key, value in found["Service"] if key == "Environment"}
    assert variables <= given, "a variable without a default would be empty"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze")
    # An instance of the template, whose program is one that is there.
    copy = tmp_path / unit.name.replace("@.", "@hospital-a.")
    text = unit.read_text().replace("/opt/fedsuite/bin/fedsuite", "/bin/true")
    copy.write_text(text.replace("https://flower.ai/docs", "man:true(1)"))
    for words in (
        ["verify", "--man=no"],
        ["security", "--offline=true", "--threshold=30", "--no-pager"],
    ):
        done = subprocess.run(
            [tool, *words, str(copy)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        problems = [line for line in done.stderr.splitlines() if unit.name[:12] in line]
        assert not problems


# Kubernetes


KINDS = {
    "Namespace": "v1",
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [doc for doc in yaml.safe_load_all(path.read_text()) if doc is not None]


def pods() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in MANIFESTS:
        for doc in documents(path):
            if doc["kind"] == "Deployment":
                yield path, doc["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for _, pod in pods():
        for container in pod["containers"]:
            yield pod, container


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_have_what_kubernetes_asks_for(path: Path) -> None:
    docs = documents(path)
    assert {doc["kind"] for doc in docs} >= {"Namespace", "Deployment", "NetworkPolicy"}
    for doc in docs:
        assert doc["apiVersion"] == KINDS[doc["kind"]]
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", doc["metadata"]["name"])
        if doc["kind"] == "Namespace":
            continue
        assert doc["metadata"]["namespace"] == "fedsuite"
        spec = doc["spec"]
        if doc["kind"] == "Deployment":
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= labels.items()
            assert spec["replicas"] == 1
            assert spec["strategy"] == {"type": "Recreate"}
        elif doc["kind"] == "PersistentVolumeClaim":
            assert spec["accessModes"]
            assert spec["resources"]["requests"]["storage"]
        elif doc["kind"] == "NetworkPolicy":
            assert set(spec["policyTypes"]) >= {"Ingress"}


def test_commands_of_the_containers_exist() -> None:
    programs = set()
    for _, container in containers():
        (program,) = container["command"]
        programs.add(program)
        if program.startswith("flower-"):
            check_secured(program, check_command(program, container["args"]))
    wanted = {"flower-superlink", "flower-supernode", "flower-superexec", "nginx"}
    assert programs == wanted


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_what_a_pod_mounts_is_there(path: Path) -> None:
    docs = documents(path)
    claims = {d["metadata"]["name"] for d in docs if d["kind"] == "PersistentVolumeClaim"}
    (pod,) = [pod for place, pod in pods() if place == path]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = set()
    for container in pod["containers"]:
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes
            mounted.add(mount["name"])
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(set(paths)) == len(paths)
    assert mounted == set(volumes)
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims
        if "configMap" in volume:
            assert f"create configmap {volume['configMap']['name']} " in README


def secret_files(name: str) -> set[str]:
    """Return the files that the page puts into a secret."""
    command = re.search(rf"create secret generic {name} ((?:.|\\\n)*?)\n    [ks]", README)
    assert command, name
    return {Path(file).name for file in re.findall(r"--from-file=(\S+)", command[1])}


def test_keys_that_containers_read_are_in_their_secrets() -> None:
    for pod, container in containers():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        keys = next(m for m in container["volumeMounts"] if "secrets" in m["mountPath"])
        secret = volumes[keys["name"]]["secret"]
        there = secret_files(secret["secretName"])
        if "items" in secret:
            items = {item["key"] for item in secret["items"]}
            assert items <= there
            there = items
        text = " ".join(container["args"]) if container["name"] != "door" else door()
        assert set(re.findall(r"/run/secrets/([\w.-]+)", text)) <= there


def test_the_secrets_of_the_page_are_what_init_makes() -> None:
    assert secret_files("superlink-keys") == HANDED_OUT["superlink"]
    assert secret_files("hospital-a-keys") == HANDED_OUT["site"]


def test_pods_keep_to_the_restricted_standard() -> None:
    for pod, container in containers():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert re.search(r":\d[\w.-]*$", container["image"]), "a tag that stays"
        assert container["resources"]["limits"]["memory"]


def test_only_the_door_is_outside() -> None:
    (service,) = [d for d in documents(MANIFESTS[0]) if d["kind"] == "Service"]
    ports = {p["name"]: c["name"] for _, c in containers() for p in c.get("ports", [])}
    targets = [ports[port["targetPort"]] for port in service["spec"]["ports"]]
    assert targets == ["door"]
    for _, container in containers():
        if container["name"] == "superlink":
            assert "--host=127.0.0.1" in container["args"]


def test_the_versions_are_the_ones_tested() -> None:
    pinned = (DEPLOY.parent / "constraints" / "flwr-1.41.txt").read_text()
    (version,) = re.findall(r"^flwr==([\d.]+)", pinned, re.MULTILINE)
    text = "".join(path.read_text() for path in (*MANIFESTS, DEPLOY / "compose.yml"))
    found = set(
        re.findall(r"(?:superlink|supernode|superexec):(?:\$\{\w+:-)?([\d.]+)", text)
    )
    assert found == {version}


# The page


def test_the_page_names_files_that_are_there() -> None:
    for name in set(re.findall(r"`((?:systemd|docker|kubernetes)/[\w@./-]*)`", README)):
        assert (DEPLOY / name).exists(), name
    for name in set(re.findall(r"deploy/([\w./-]+\.(?:yml|yaml|conf))", README)):
        assert (DEPLOY / name).exists(), name


def test_the_pages_examples_are_good_experiments_and_nodes() -> None:
    from fedsuite.data.site import site_from_config
    from fedsuite.experiment import Experiment

    blocks = [b.replace("\n    ", "\n") for b in re.findall(r"(?:\n(?:    .*)?)+", README)]
    heart = next(b for b in blocks if "# heart.toml" in b)
    experiment = Experiment.from_values(tomllib.loads(heart))
    assert experiment["num-clients"] == 2
    node = tomllib.loads(next(b for b in blocks if "[node-config]" in b))
    assert site_from_config(node["node-config"]).data == Path("/srv/hospital-a")
    for key in re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE):
        if key != "site":
            site_from_config({"data": "/srv", key: "x:y"})
            with pytest.raises(Exception, match=key):
                site_from_config({"data": "/srv", key: 3})


def test_the_pages_commands_are_fedsuites() -> None:
    text = README + "".join(unit.read_text() for unit in UNITS)
    calls = re.findall(r"fedsuite deploy (\w+)((?: +[^\s#`]+)*)", text)
    assert {"init", "superlink", "supernode", "run", "status"} <= {
        name for name, _ in calls
    }
    helped: dict[str, str] = {}
    for name, rest in calls:
        if name not in helped:
            done = subprocess.run(
                [sys.executable, "-m", "fedsuite", "deploy", name, "--help"],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
            )
            if "No such command" in done.stderr + done.stdout:
                pytest.skip("this fedsuite has no deploy commands")
            assert done.returncode == 0, done.stderr
            helped[name] = done.stdout
        for flag in re.findall(r"--[a-z-]+", rest):
            assert flag in helped[name], f"fedsuite deploy {name} has no {flag}"
