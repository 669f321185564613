"""``astraflow pool start | join | ls | drain | token``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from astraflow_contrib_pool.config import PoolFile
    from astraflow_wire.http.client import SyncClient

_PAGE = "pool.md"
_DEADLINE_S = 10.0


def add_start(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pool start``."""
    parser.description = "Serves a pool until Ctrl-C: runs of its tenants get RaaS on its hosts."
    parser.add_argument("file", metavar="FILE", type=Path, help="TOML file of the pool")
    parser.set_defaults(command=run_start)
    teach(parser, _PAGE, "pool start pool.toml")


def add_join(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pool join``."""
    parser.description = "Lends this host, or the GPUs that CUDA_VISIBLE_DEVICES names, to a pool until Ctrl-C or `pool drain`."
    parser.add_argument("url", metavar="URL", help="address of the pool")
    parser.add_argument(
        "--token-file", metavar="FILE", type=Path, help="token of hosts; default: ASTRAFLOW_TOKEN"
    )
    parser.add_argument("--name", help="name of this host in the pool; default: its host name")
    parser.add_argument(
        "--slots", type=int, default=2, help="RaaS that fit into its memory side by side (2)"
    )
    parser.add_argument(
        "--places", type=int, default=64, help="concurrent episodes, of all RaaS together (64)"
    )
    parser.add_argument(
        "--share-engines",
        action="store_true",
        help="runs that train adapters of one model with an engine of the same keys have one engine",
    )
    parser.set_defaults(command=run_join)
    teach(parser, _PAGE, "pool join https://10.0.0.1:19400 --token-file hosts.token --slots 2")


def add_ls(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pool ls``."""
    _add_pool(parser)
    parser.add_argument("--ledger", action="store_true", help="what each run has used so far")
    parser.add_argument("--all", action="store_true", help="also runs that left")
    parser.add_argument("--json", action="store_true", help="print JSON, of all runs")
    parser.set_defaults(command=run_ls)
    teach(
        parser, _PAGE, "pool ls pool.toml", "pool ls https://10.0.0.1:19400 --token-file ada.token"
    )


def add_drain(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pool drain``."""
    _add_pool(parser)
    parser.add_argument("names", metavar="HOST", nargs="+", help="hosts, as `pool ls` lists them")
    parser.set_defaults(command=run_drain)
    teach(parser, _PAGE, "pool drain pool.toml gpu-2")


def add_token(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pool token``."""
    parser.add_argument("file", metavar="FILE", type=Path, help="TOML file of the pool")
    parser.add_argument(
        "tenant", metavar="TENANT", nargs="?", help="name of a tenant; default: the token of hosts"
    )
    parser.set_defaults(command=run_token)
    teach(parser, _PAGE, "pool token pool.toml ada", "pool token pool.toml")


def _add_pool(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pool", metavar="POOL", help="TOML file of a pool of this host, or its address"
    )
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="token, with an address")


def run_start(arguments: argparse.Namespace) -> int:
    """Serve a pool."""
    from astraflow_contrib_pool.config import read_pool
    from astraflow_contrib_pool.serving import configure, serve_pool

    configure()
    return serve_pool(read_pool(arguments.file))


def run_join(arguments: argparse.Namespace) -> int:
    """Lend this host."""
    from astraflow_contrib_pool.host import host_name
    from astraflow_contrib_pool.messages import MOST_PLACES, MOST_SEATS, NAME_PATTERN
    from astraflow_contrib_pool.serving import configure, serve_host
    from astraflow_runtime.cli.running.secrets import read_token

    if not (1 <= arguments.slots <= MOST_SEATS and 1 <= arguments.places <= MOST_PLACES):
        raise UserError(f"--slots is 1 to {MOST_SEATS}, --places 1 to {MOST_PLACES}")
    name = arguments.name or host_name()
    if not re.match(NAME_PATTERN, name):
        raise UserError(
            f"--name {name!r}: expected up to 100 letters, digits, '.', '_' and '-', with a letter or digit first"
        )
    if not arguments.url.startswith(("http://", "https://")):
        raise UserError(
            f"URL {arguments.url!r}: expected an address such as https://10.0.0.1:19400"
        )
    configure()
    token = read_token(arguments.token_file)
    numbers = arguments.slots, arguments.places
    return serve_host(arguments.url, token, name, *numbers, arguments.share_engines)


def run_ls(arguments: argparse.Namespace) -> int:
    """List hosts and runs, or the ledger."""
    with _asking(arguments) as client:
        path = "/v1/ledger" if arguments.ledger else "/v1/status"
        answer: Any = client.get_json(path, deadline_s=_DEADLINE_S)
    if arguments.json:
        print_json(answer)
    elif arguments.ledger:
        columns = ("run", "tokens", "RaaS hours", "episode hours", "cost")
        print_table(columns, [_ledger_row(row) for row in answer])
    else:
        import msgspec

        from astraflow_contrib_pool.broker.reports import pool_tables
        from astraflow_contrib_pool.messages import PoolReport

        report = msgspec.convert(answer, PoolReport)
        shown = [run for run in report.runs if arguments.all or run.here or run.raas]
        for header, rows in pool_tables(msgspec.structs.replace(report, runs=shown)):
            print_table(header, rows)
            print_line()
        if not report.runs:
            print_line("no run has joined yet")
        elif left := len(report.runs) - len(shown):
            print_line(f"runs that left: {left}; --all lists them too")
    return 0


def _ledger_row(row: dict[str, Any]) -> tuple[object, ...]:
    hours = (f"{row[key] / 3600:.3f}" for key in ("slot_s", "place_s"))
    return (row["run"], f"{row['tokens']:.0f}", *hours, f"{row['cost']:.2f}")


def run_drain(arguments: argparse.Namespace) -> int:
    """Drain hosts."""
    from astraflow_contrib_pool.messages import DrainHost, Remaining
    from astraflow_runtime.cli.running.pool import user

    with _asking(arguments) as client:
        for name in arguments.names:
            message = DrainHost(host=name, author=user())
            answer = client.post("/v1/hosts/drain", message, Remaining, deadline_s=_DEADLINE_S)
            print_line(f"{name} leaves when its {answer.remaining} RaaS have ended their tasks")
    return 0


def run_token(arguments: argparse.Namespace) -> int:
    """Print a token."""
    from astraflow_contrib_pool.access import HOSTS, pool_token
    from astraflow_contrib_pool.config import read_pool
    from astraflow_contrib_pool.serving import TOKEN_FILE
    from astraflow_core.suggestions import did_you_mean
    from astraflow_runtime.cli.running.listening import kept_token

    file: PoolFile = read_pool(arguments.file)
    directory = Path(file.pool.directory)
    directory.mkdir(0o700, parents=True, exist_ok=True)
    token = kept_token(directory / TOKEN_FILE)
    if arguments.tenant is None:
        sys.stdout.write(pool_token(token, "host", HOSTS) + "\n")
        return 0
    if (table := file.tenants.get(arguments.tenant)) is None:
        raise UserError(
            f"{arguments.file} has no tenant {arguments.tenant!r}{did_you_mean(arguments.tenant, file.tenants)} (tenants: "
            f"{', '.join(file.tenants)}); add [tenants.{arguments.tenant}]"
        )
    sys.stdout.write(pool_token(token, "tenant", arguments.tenant, table.generation) + "\n")
    return 0


@contextmanager
def _asking(arguments: argparse.Namespace) -> Iterator[SyncClient]:
    """A client of the pool; what it refuses becomes an error of the user."""
    from astraflow_core.errors import DeadlineExceeded, Refused
    from astraflow_runtime.cli.running.secrets import read_token
    from astraflow_wire.http.client import SyncClient

    if arguments.pool.startswith(("http://", "https://")):
        url, token = arguments.pool, read_token(arguments.token_file)
    else:
        url, token = _local(Path(arguments.pool), arguments.token_file)
    client = SyncClient(url, token)
    try:
        yield client
    except Refused as error:
        raise UserError(
            f"the pool at {url} refused the request: {error} ({error.status})"
        ) from error
    except DeadlineExceeded as error:
        raise UserError(f"no pool answers at {url}; check that it is running ({error})") from error
    finally:
        client.close()


def _local(path: Path, token_file: Path | None) -> tuple[str, str]:
    """Address and token of a pool of this host, by its file."""
    from astraflow_contrib_pool.config import read_pool
    from astraflow_contrib_pool.serving import ADDRESS, TOKEN_FILE
    from astraflow_runtime.cli.running.secrets import read_token

    directory = Path(read_pool(path).pool.directory)
    try:
        url = json.loads((directory / ADDRESS).read_text(encoding="utf-8"))["url"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{directory / ADDRESS} has no address of a pool; start it with `astraflow pool start {path}`"
        ) from error
    return str(url), read_token(token_file or directory / TOKEN_FILE)
