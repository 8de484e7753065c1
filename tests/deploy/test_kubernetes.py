"""The manifests for Kubernetes in deploy/."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.shipped import (
    HANDED_OUT,
    MANIFESTS,
    README,
    SITE,
    check_command,
    check_secured,
    documents,
    flower_program,
    nginx_text,
)

KINDS = {
    "Namespace": "v1",
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}


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
    commands = []
    for _, container in containers():
        commands.append(container["command"])
        if program := flower_program(container["command"]):
            check_secured(program, check_command(program, container["args"]))
    own = ["flower-superlink", "flower-superexec", "nginx"]
    assert sorted(commands) == sorted([SITE, *([program] for program in own)])


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
        if container["command"] == SITE:
            continue
        keys = next(m for m in container["volumeMounts"] if "secrets" in m["mountPath"])
        secret = volumes[keys["name"]]["secret"]
        there = secret_files(secret["secretName"])
        if "items" in secret:
            items = {item["key"] for item in secret["items"]}
            assert items <= there
            there = items
        text = " ".join(container["args"]) if container["name"] != "proxy" else nginx_text()
        assert set(re.findall(r"/run/secrets/([\w.-]+)", text)) <= there


def test_the_secrets_of_the_page_are_what_init_makes() -> None:
    assert secret_files("superlink-keys") == HANDED_OUT["superlink"]
    assert secret_files("hospital-a-keys") == HANDED_OUT["site"]


def test_a_site_runs_the_relay_on_its_whole_folder() -> None:
    """Each file of the folder is one of the secret's, and what is written stays."""
    (container,) = [c for _, c in containers() if c["command"] == SITE]
    assert container["args"] == ["/node"]
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    files = {path for path in mounts if path.startswith("/node/")}
    assert {Path(path).name for path in files} == secret_files("hospital-a-keys")
    assert all(mounts[path]["subPath"] == Path(path).name for path in files)
    assert all(mounts[path]["readOnly"] for path in files)
    assert mounts["/node"]["name"] == "node"


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


def test_only_the_proxy_is_outside() -> None:
    (service,) = [d for d in documents(MANIFESTS[0]) if d["kind"] == "Service"]
    ports = {p["name"]: c["name"] for _, c in containers() for p in c.get("ports", [])}
    targets = [ports[port["targetPort"]] for port in service["spec"]["ports"]]
    assert targets == ["proxy"]
    for _, container in containers():
        if container["name"] == "superlink":
            assert "--host=127.0.0.1" in container["args"]
