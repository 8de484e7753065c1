"""The files for containers in deploy/: services, images, and the reverse proxy in front."""

import re
import tomllib
from pathlib import Path

import pytest

from fedsuite.engines.flower import fleet_is_grpc
from tests.deploy.shipped import (
    COMPOSE,
    DEPLOY,
    HANDED_OUT,
    README,
    SERVICES,
    SITE,
    check_command,
    check_secured,
    expand,
    flower_program,
    nginx_text,
)

# Containers


@pytest.mark.parametrize("name", SERVICES)
def test_commands_of_the_services_exist(name: str) -> None:
    service = SERVICES[name]
    if program := flower_program(service["entrypoint"]):
        check_secured(program, check_command(program, service["command"]))
    else:
        assert service["entrypoint"] in ([], ["nginx"], SITE)


def test_a_site_runs_the_relay_on_its_whole_folder() -> None:
    """A policy is one of the folder's files, so no container of a site is without it."""
    service = SERVICES["supernode"]
    assert (service["entrypoint"], service["command"]) == (SITE, ["/node"])
    assert {name for name, s in SERVICES.items() if s["profiles"] == ["site"]} == {
        "supernode"
    }
    assert next(v.rpartition("/nodes/")[2] for v in service["volumes"]) == (
        "${SITE:-site}:/node"
    )
    assert 'shelter = "landlock"' in README


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_names_is_there(name: str) -> None:
    service = SERVICES[name]
    for secret in service.get("secrets", []):
        assert secret in COMPOSE["secrets"]
    others = {*service.get("depends_on", []), service.get("network_mode", "")} - {""}
    for other in others:
        used = SERVICES[other.removeprefix("service:")]
        # Compose refuses a file of whose enabled services one uses a disabled one.
        assert set(service["profiles"]) <= set(used["profiles"]), other
    for volume in service.get("volumes", []):
        # What does not start with a variable is a file of this folder.
        if volume.startswith("./"):
            assert (DEPLOY / volume.split(":")[0]).exists(), volume
    used = set(re.findall(r"/run/secrets/([\w.-]+)", " ".join(service["command"])))
    assert used <= set(service.get("secrets", [])), "a command reads what is not mounted"


def test_secrets_are_the_files_that_init_makes() -> None:
    paths = [Path(expand(s["file"], FEDERATION="F")) for s in COMPOSE["secrets"].values()]
    assert {str(path.parent) for path in paths} == {"F/superlink"}
    assert {path.name for path in paths} == HANDED_OUT["superlink"]


def test_every_variable_has_a_default_and_is_explained() -> None:
    text = (DEPLOY / "compose.yml").read_text()
    assert not re.findall(r"\$\{\w+\}", text), "compose would warn and take nothing"
    for name in set(re.findall(r"\$\{(\w+)", text)) - {"FLWR_VERSION", "PORT"}:
        assert re.search(rf"\b{name}\b", README), name


def test_the_superlink_is_reached_through_the_proxy_alone() -> None:
    published = {name for name, service in SERVICES.items() if "ports" in service}
    assert published == {"superlink"}
    assert SERVICES["superlink"]["ports"] == ["${PORT:-8443}:8443"]
    command = SERVICES["superlink"]["command"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert SERVICES["proxy"]["network_mode"] == "service:superlink"


def test_apps_see_no_private_key() -> None:
    """At a site the shelter sees to that."""
    for name in ("serverapps", "admin"):
        assert "server.key" not in SERVICES[name]["secrets"]
        assert "superexec" in SERVICES[name]["image"]
    assert any(v.endswith(":/data:ro") for v in SERVICES["supernode"]["volumes"])


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_without_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service["image"].endswith(":latest")


def test_the_image_is_built_of_files_that_are_there() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    for source in (source for sources in copied for source in sources):
        assert (DEPLOY.parent / source).exists(), source
    assert "FROM flwr/superexec:${FLWR_VERSION}" in lines
    assert not any(line.startswith("USER root") for line in lines)
    build = SERVICES["supernode"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert (context / build["dockerfile"]).is_file()


def test_flowers_commands_find_the_superlink() -> None:
    config = tomllib.loads((DEPLOY / "docker" / "flwr-config.toml").read_text())
    name = config["superlink"]["default"]
    command = SERVICES["superlink"]["command"]
    port = command[command.index("--port") + 1]
    assert config["superlink"][name]["address"] == f"127.0.0.1:{port}"
    assert config["superlink"][name]["root-certificates"] == "/run/secrets/ca.crt"


# The reverse proxy


def test_the_proxy_opens_to_the_fleet_api_alone() -> None:
    places = dict(re.findall(r"location (\S+) \{([^}]*)\}", nginx_text()))
    assert set(places) == {"/v1/fleet/", "/"}
    assert "return 404;" in places["/"]
    assert "proxy_pass https://127.0.0.1:8000/v1/fleet/;" in places["/v1/fleet/"]
    assert "proxy_ssl_verify on;" in places["/v1/fleet/"]


@pytest.mark.skipif(fleet_is_grpc(), reason="SuperNodes have a port to themselves")
def test_supernodes_need_nothing_but_the_fleet_api() -> None:
    from flwr.supernode import fleet_http_client

    source = Path(fleet_http_client.__file__).read_text()
    paths = set(re.findall(r'path="(/[^"]+)"', source))
    assert len(paths) > 5
    assert all(path.startswith("/v1/fleet/") for path in paths)


def test_the_proxys_keys_are_mounted() -> None:
    needed = set(re.findall(r"/run/secrets/([\w.-]+)", nginx_text()))
    assert needed == {"ca.crt", "server.pem", "server.key"}
    assert needed <= set(SERVICES["proxy"]["secrets"])
