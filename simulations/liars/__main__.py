"""Searches for what one dishonest client can do to each method.

    python -m simulations.liars search                  # all methods, twelve runs each
    python -m simulations.liars search --methods fedavg,term --runs 24 --into new.csv
    python -m simulations.liars violations              # what is beyond the bounds
    python -m simulations.liars page                    # writes the tables of the page
    python -m simulations.liars coalitions              # coalitions, sybils, backdoors
    python -m simulations.liars mends                   # the worst lies, under each rule
    python -m simulations.liars again fedavg "10 classes" "train record *: length 99 odd"

From the repository's root. ``search`` adds the rows of the methods that the CSV lacks, so
an interrupted search goes on. A row is repeated by ``search`` with its seed and as many
runs, or by ``again`` with its lie. ``--name before`` and ``--name after`` are the CSVs of
the code without and with its defences; after is the default. The protocol is on the page
docs/how-to/dishonest_clients.md.
"""

import argparse
import logging

from simulations.liars import coalitions, mends, tables
from simulations.liars.lies import Lie
from simulations.liars.runs import SETTINGS, absent, play
from simulations.liars.search import Found, row_of


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m simulations.liars")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("search", "violations", "page", "coalitions", "mends"):
        command = commands.add_parser(name)
        command.add_argument("--name", default="after", help="before or after")
        command.add_argument("--into", default="", help="another CSV")
        if name == "search":
            command.add_argument("--methods", default="", help="some methods, by name")
            command.add_argument("--runs", type=int, default=12, help="runs a method")
            command.add_argument("--seed", type=int, default=0)
    again = commands.add_parser("again")
    again.add_argument("method")
    again.add_argument("setting", choices=[setting.name for setting in SETTINGS])
    again.add_argument("lie")
    again.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    if given.command == "again":
        [setting] = [s for s in SETTINGS if s.name == given.setting]
        lie = Lie.parse(given.lie)
        outcome = play(given.method, setting, lie, seed=given.seed)
        without = absent(given.method, setting)
        found = Found(given.method, setting, given.seed, 0, lie, outcome, without)
        for column, cell in row_of(found).items():
            print(f"{column:14} {cell}")
        return
    path = tables.csv_of(given.name, given.into)
    if given.command == "search":
        methods = [name for name in given.methods.split(",") if name]
        tables.run(path, methods, given.runs, given.seed)
    elif given.command == "violations":
        print("\n".join(tables.violations(tables.read(path))) or "none")
    elif given.command == "page":
        tables.rewrite_page()
    elif given.command == "mends":
        mends.run(path, path.with_name(f"mends_{path.name}"))
    else:
        coalitions.run(path.with_name(f"coalitions_{path.name}"))


if __name__ == "__main__":
    main()
