"""``fedsuite deploy``: its commands; what they need is imported when they are called."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO
from fedsuite.core.output import print_line
from fedsuite.experiment.command_options import FileArgument, SetOption, overrides

if TYPE_CHECKING:
    from fedsuite.core.keys import Value
    from fedsuite.experiment.experiment import Experiment

app = typer.Typer(
    help="Federations across machines: keys and folders, SuperLink, SuperNodes, status.",
    no_args_is_help=True,
    suggest_commands=False,
)

DaysOption = Annotated[int, typer.Option(min=1, help="Days that the certificate holds.")]
SuperLinkArgument = Annotated[
    Path, typer.Argument(help="The SuperLink's folder, as `deploy init` made it.")
]
NodeArgument = Annotated[
    Path, typer.Argument(help="The node's folder, as it was handed out.")
]
SchemaOption = Annotated[
    Path | None,
    typer.Option(help="Schema of the sites' tables; each site's folder gets a copy."),
]
WheelOption = Annotated[
    Path | None,
    typer.Option(
        help="Wheel of `make dist`; each folder gets it and its pinned requirements."
    ),
]


@app.command()
def init(
    superlink: Annotated[
        str,
        typer.Option(help="Names or addresses of the SuperLink, comma-separated."),
    ],
    nodes: Annotated[str, typer.Option(help="Names of the nodes, comma-separated.")],
    output: Annotated[Path, typer.Option(help="Folder to make.")] = Path("federation"),
    port: Annotated[
        int,
        typer.Option(min=1, max=65535, help="SuperLink's port, on its own machine alone."),
    ] = 8000,
    fleet_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65535,
            help="Port that sites reach: nginx's, in Flower 1.39 the Fleet API's own.",
        ),
    ] = 8443,
    days: DaysOption = 365,
    schema: SchemaOption = None,
    wheel: WheelOption = None,
) -> None:
    """Make keys, certificates, and one folder to hand to each site."""
    from fedsuite.deploy.folders import KEEPER, NODES, PROXY, SUPERLINK, init_federation
    from fedsuite.deploy.relay.policy import default_text

    names = _names(nodes)
    init_federation(
        output,
        _names(superlink),
        names,
        port=port,
        fleet_port=fleet_port,
        days=days,
        schema=schema,
        policy=default_text(),
        wheel=wheel,
    )
    print(f"{output / KEEPER}: for a safe, off the server, until `deploy renew` needs it")
    print(f"{output / SUPERLINK}: for the server; keep its keys there")
    config = output / SUPERLINK / PROXY
    if config.exists():
        print(f"{config}: for nginx before it, on port {fleet_port}")
    for name in names:
        print(f"{output / NODES / name}: for {name} alone")


@app.command()
def renew(
    folder: SuperLinkArgument,
    days: DaysOption = 365,
    authority: Annotated[
        Path | None,
        typer.Option(help="Folder with ca.key; default: the one beside the SuperLink's."),
    ] = None,
) -> None:
    """Renew the SuperLink's certificate; nodes need nothing new."""
    from fedsuite.deploy.folders import PROXY, SERVER, SuperLinkFolder
    from fedsuite.deploy.validity import renew as renew_certificate

    end = renew_certificate(SuperLinkFolder.load(folder), days, authority)
    both = "SuperLink and proxy" if (folder / PROXY).exists() else "the SuperLink"
    print(f"{folder / SERVER} holds until {end:%Y-%m-%d}: start {both} again")


@app.command()
def nodes(
    folder: SuperLinkArgument,
    add: Annotated[
        str, typer.Option(help="Names of new nodes, comma-separated: a folder for each.")
    ] = "",
    remove: Annotated[
        str, typer.Option(help="Names of nodes that may not join any more.")
    ] = "",
    new_keys: Annotated[
        str, typer.Option(help="Names of nodes that get new keys in place of their own.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for what goes to sites; default: as `deploy init`."),
    ] = None,
    schema: SchemaOption = None,
    wheel: WheelOption = None,
) -> None:
    """Add nodes, take some out, or give them new keys, and tell the SuperLink.

    Without options the SuperLink is told of the folder's keys alone.
    """
    from fedsuite.core.errors import RunError
    from fedsuite.deploy import folders
    from fedsuite.deploy.programs import register_nodes
    from fedsuite.deploy.relay.policy import default_text

    if sum(map(bool, (add, remove, new_keys))) > 1:
        raise ConfigError("--add, --remove, --new-keys: give one of them at a time")
    loaded = folders.SuperLinkFolder.load(folder)
    place = output or loaded.path.parent / folders.NODES
    if left := _names(remove):
        loaded = folders.remove_nodes(loaded, left)
    elif renewed := _names(new_keys):
        folders.replace_keys(loaded, renewed, place)
        for name in renewed:
            print_line(f"{place / name}: the files that replace {name}'s key and key.pub")
    elif added := _names(add):
        loaded = folders.add_nodes(
            loaded, added, place, schema=schema, policy=default_text(), wheel=wheel
        )
        for name in added:
            print_line(f"{place / name}: for {name} alone")
    try:
        changes = register_nodes(loaded)
    except RunError as error:
        if not (add or remove or new_keys):
            raise
        again = f"`fedsuite deploy nodes {folder}`"
        print_line(f"the SuperLink was not told ({error}): {again} tells it, or its start")
        return
    print_line(str(changes) or "nothing to tell the SuperLink")
    if unknown := set(left) - set(changes.removed):
        print_line(
            f"{', '.join(sorted(unknown))}: not registered from this folder; if `flwr "
            "supernode list` shows a node of it, `flwr supernode unregister` takes it out"
        )


@app.command()
def superlink(
    folder: SuperLinkArgument,
    bind: Annotated[
        str,
        typer.Option(help="Address to listen on; by default nobody else reaches it."),
    ] = "127.0.0.1",
    open_control_api: Annotated[
        bool,
        typer.Option(
            "--open-control-api",
            help="Let all who reach the address run code at all sites, without a key.",
        ),
    ] = False,
) -> None:
    """Run the SuperLink until it is stopped; nodes whose keys it has may join.

    Sites on other machines come in through nginx, by the nginx.conf in its folder.
    """
    from fedsuite.deploy.folders import SuperLinkFolder
    from fedsuite.deploy.programs import run_superlink

    loaded = SuperLinkFolder.load(folder)
    run_superlink(loaded, print_line, bind, opens=open_control_api)


@app.command()
def supernode(
    folder: NodeArgument,
    runtime_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port on this machine's loopback; default: a free one."
        ),
    ] = None,
) -> None:
    """Run a SuperNode until it is stopped; it keeps private models in its folder."""
    from fedsuite.deploy.folders import NodeFolder
    from fedsuite.deploy.programs import run_supernode

    run_supernode(NodeFolder.load(folder), runtime_port, print_line)


@app.command()
def run(
    folder: SuperLinkArgument,
    file: FileArgument,
    settings: SetOption = None,
    host: Annotated[str, typer.Option(help="Host of the SuperLink's port.")] = "127.0.0.1",
) -> None:
    """Run an experiment on an existing federation, and show its log."""
    from fedsuite.experiment.experiment import Experiment

    _submit(folder, Experiment.load(file, overrides(settings)), host)


@app.command()
def statistics(
    file: FileArgument,
    superlink: Annotated[
        Path | None,
        typer.Option(
            help="The SuperLink's folder; default: the sites of a rehearsal (site-dirs)."
        ),
    ] = None,
    settings: SetOption = None,
    host: Annotated[str, typer.Option(help="Host of the SuperLink's port.")] = "127.0.0.1",
) -> None:
    """Show rows, ranges, missing values and classes of each site, before training.

    A site tells nothing of fewer rows than its least-rows, and no value of a person.
    """
    from fedsuite.data import DataSettings
    from fedsuite.data.site_federation import rehearsal_statistics
    from fedsuite.data.site_statistics import statistics_lines
    from fedsuite.engines.api import at_home
    from fedsuite.experiment.experiment import Experiment

    experiment = Experiment.load(file, overrides(settings))
    if not experiment.group(DataSettings).sites:
        raise ConfigError(f"{file} names no sites, which `deploy statistics` asks")
    if superlink is not None:
        _submit(superlink, experiment.replace(only_statistics=True), host)
        return
    if not experiment["site-dirs"]:
        raise ConfigError(
            "name the SuperLink's folder by --superlink, or the folder of a rehearsal by "
            "--set site-dirs=FOLDER"
        )
    for line in statistics_lines(rehearsal_statistics(at_home(experiment).values)):
        print_line(line)


@app.command()
def check(
    folder: NodeArgument,
    file: Annotated[
        Path | None,
        typer.Argument(help="Experiment; default: own-table by the folder's schema."),
    ] = None,
    settings: SetOption = None,
) -> None:
    """Read a site's data as a run would, and say all that is wrong with it."""
    from fedsuite.data.site import site_from_config
    from fedsuite.data.site_federation import check_site
    from fedsuite.deploy.folders import NodeFolder
    from fedsuite.engines.api import at_home
    from fedsuite.experiment.experiment import Experiment

    node = NodeFolder.load(folder)
    site = site_from_config({"site": node.name, **node.config})
    if file is not None:
        values = dict(at_home(Experiment.load(file, overrides(settings))).values)
    elif site.schema is not None:
        values = {"dataset": "own-table", "schema": site.schema.to_json()}
    else:
        raise ConfigError(
            f"{folder} has no schema: name the experiment whose run is to read the data"
        )
    for line in check_site(site, values):
        print_line(line)


@app.command("check-policy")
def check_policy(
    folder: NodeArgument,
    write: Annotated[
        bool, typer.Option("--write", help="Write a policy where there is none.")
    ] = False,
) -> None:
    """Check a site's policy, and try the shelter in which apps run."""
    from fedsuite.core.files import atomic_write
    from fedsuite.deploy.folders import POLICY, NodeFolder
    from fedsuite.deploy.programs import supernode_environment
    from fedsuite.deploy.relay.policy import default_text
    from fedsuite.deploy.relay.shelter import check_shelter

    path = folder / POLICY
    if write and not path.exists():
        NodeFolder.load(folder)
        atomic_write(path, default_text().encode())
        print_line(f"{path}: read it, and change what is not this site's rule")
    node = NodeFolder.load(folder)
    if node.policy is None:
        raise ConfigError(f"{folder} has no {POLICY}: --write writes one")
    check_shelter(node.policy, node, supernode_environment(node))
    policy = node.policy
    print_line(f"policy {policy.digest[:12]} of {node.name}: it can be used")
    if policy.shelter.shelter == "none":
        print_line("shelter = none: apps reach the network and all that this user may")
        idle = [
            name for name in ("read", "write", "devices") if policy.shelter.values()[name]
        ]
        if idle:
            print_line(f"shelter.{', '.join(idle)}: without effect while shelter = none")
    if policy.apps.allow == "*":
        print_line("apps.allow = *: any app may run; a hash names one")
    if not policy.leave.most_rows:
        print_line("leave.most-rows = 0: num-examples has no bound; give the site's rows")


@app.command()
def audit(
    folder: NodeArgument,
    since: Annotated[
        str, typer.Option(help="First day or time to show (UTC), as 2026-11-27.")
    ] = "",
    run: Annotated[str, typer.Option(help="The only run to show.")] = "",
    output: Annotated[
        Path | None, typer.Option(help="File to write: .html or .csv.")
    ] = None,
    head: Annotated[
        bool, typer.Option("--head", help="Print the hash of the last line alone.")
    ] = False,
    holds: Annotated[
        str, typer.Option(help="A head that was handed over: is its line still there?")
    ] = "",
) -> None:
    """Verify a site's ledger, and show what left to whom and when."""
    from fedsuite.core.errors import RunError
    from fedsuite.core.files import atomic_write
    from fedsuite.deploy.folders import NodeFolder
    from fedsuite.deploy.relay import audit as audits
    from fedsuite.deploy.relay.ledger import LEDGER, read_chain
    from fedsuite.results.tables import console_table, print_table

    if output is not None and output.suffix not in (".html", ".csv"):
        raise ConfigError(f"--output {output}: expected a name that ends in .html or .csv")
    node = NodeFolder.load(folder)
    chain = read_chain(node.path / LEDGER)
    if head:
        if not chain.head:
            raise RunError(f"{node.path / LEDGER} has no line yet: there is no head")
        print_line(chain.head)
        return
    if holds:
        print_line(audits.held(chain, holds))
        return
    result = audits.audit(node.name, chain, since, run)
    print_line(result.verdict)
    for name, value in result.facts.items():
        print_line(f"  {name}: {value}")
    if output is None:
        lines = [audits.HEADINGS, *result.lines]
        dropped = ("round", "asked", "app")
        left = [n for n in range(len(audits.HEADINGS)) if n != audits.MEGABYTES]
        print_table(console_table(lines, left=left, drop=dropped))
    elif output.suffix == ".html":
        result.write_page(output)
        print_line(f"page: {output}")
    else:
        atomic_write(output, result.csv().encode())
        print_line(f"table: {output}")
    if chain.broken:
        raise RunError(f"{node.path / LEDGER}: line {chain.broken} does not fit the others")


def _names(text: str) -> list[str]:
    """Return the names of a comma-separated option; none of an empty one."""
    return [name.strip() for name in text.split(",")] if text else []


def _submit(folder: Path, experiment: "Experiment", host: str) -> None:
    """Run an experiment on an existing federation."""
    from fedsuite.deploy.folders import SuperLinkFolder
    from fedsuite.deploy.rehearsal import submit
    from fedsuite.experiment.paths import places, refuse_relative_paths

    values = portable(experiment)
    if experiment["output-dir"] == AUTO:
        # The server's own place, where `deploy status` looks; this may be another machine.
        values["output-dir"] = AUTO
    refuse_relative_paths(values)
    if own := sorted(set(places(values)) - {"FEDSUITE_RUNS"}):
        print_line(f"the folders of nodes are their operators' own, by {', '.join(own)}")
    submit(SuperLinkFolder.load(folder), values, print_line, host)


@app.command()
def local(
    file: FileArgument,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes to start.")] = 2,
    settings: SetOption = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Keep the federation's folders here; default: nowhere."),
    ] = None,
) -> None:
    """Rehearse a whole federation as processes of this machine."""
    from fedsuite.deploy.endings import resumable_rehearsal
    from fedsuite.deploy.rehearsal import rehearse
    from fedsuite.engines.api import at_home, write_report_if_wanted
    from fedsuite.engines.staging import check_code
    from fedsuite.experiment.experiment import Experiment

    experiment = Experiment.load(file, overrides(settings))
    # All machines are this one.
    values = dict(at_home(experiment.replace(engine="deployment")).values)
    if values.get("sites"):
        raise ConfigError(
            "key sites: nodes that this command starts bring no data; rehearse with "
            "`fedsuite run` and site-dirs, or start them with `fedsuite deploy supernode`"
        )
    if output is None and values["state-dir"] == AUTO:
        # The nodes' folders go, and a resumed run needs what clients kept.
        values["state-dir"] = str(Path(str(values["output-dir"])) / ".state")
    check_code(values)
    with resumable_rehearsal(values, nodes, output):
        rehearse(values, nodes, output, print_line)
    run_folder = Path(str(values["output-dir"])) / str(values["run-name"])
    write_report_if_wanted(values, [run_folder], run_folder)


@app.command()
def status(
    folder: SuperLinkArgument,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of runs; default: the SuperLink's own.")
    ] = None,
) -> None:
    """Show nodes, runs, last rounds, and replies that were not used."""
    from rich.console import Console
    from rich.text import Text

    from fedsuite.core.errors import RunError
    from fedsuite.deploy.folders import SERVER, SuperLinkFolder
    from fedsuite.deploy.programs import superlink_environment
    from fedsuite.deploy.status import federation_tables, read_runs, results_table
    from fedsuite.deploy.validity import valid_until

    loaded = SuperLinkFolder.load(folder)
    console = Console()
    console.print(
        f"The certificate holds until {valid_until(loaded.path / SERVER):%Y-%m-%d}"
    )
    runs_folder = runs or Path(superlink_environment(loaded)["FEDSUITE_RUNS"])
    statuses = read_runs(runs_folder)
    try:
        for table in federation_tables(loaded, statuses):
            console.print(table)
    except RunError as error:
        # What it has done is in its folder all the same.
        start = f"fedsuite deploy superlink {loaded.path}"
        advice = f"the SuperLink does not answer ({error}): `{start}` starts it"
        console.print(Text(advice))
    console.print(results_table(runs_folder, statuses))


def portable(experiment: "Experiment") -> "dict[str, Value]":
    """Return values with absolute folders for results and a name for the run.

    Where data lies is each machine's own affair: ``data-dir`` stays as it is.
    """
    from fedsuite.engines.api import at_home

    values = dict(at_home(experiment.replace(engine="deployment")).values)
    return {**values, "data-dir": experiment["data-dir"]}
