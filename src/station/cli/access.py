"""`stn key`, `stn deployment`: who may use this station over TCP beside its own user."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import JsonOption, connect, note, print_json
from .text import ago, table

if TYPE_CHECKING:
    from station.core.access import KeyView

LifeOption = Annotated[
    str | None,
    typer.Option("--ttl", metavar="DUR", help="It ends after so long: 90s, 15m, 12h, 7d, 2w. [default: never]"),
]
KeyNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Who or what is to have it.")]
KeyIdArgument = Annotated[str, typer.Argument(metavar="ID", help="As `stn key list` shows it.")]
DeploymentArgument = Annotated[str, typer.Argument(metavar="NAME", help="The deployment.")]


def register(app: typer.Typer) -> None:
    keys = typer.Typer(help="API keys: who shows one over TCP may do all that you may.", no_args_is_help=True)
    keys.command("create", no_args_is_help=True)(create_key)
    keys.command("list")(list_keys)
    keys.command("revoke", no_args_is_help=True)(revoke_key)
    app.add_typer(keys, name="key")
    deployments = typer.Typer(
        help="Deployments: others who use this station over TCP, each with sandboxes and files of its own.",
        no_args_is_help=True,
    )
    for command in (create, token, rotate, delete):
        deployments.command(command.__name__, no_args_is_help=True)(command)
    deployments.command("list")(list_)
    app.add_typer(deployments, name="deployment")


def create_key(name: KeyNameArgument, *, ttl: LifeOption = None, json: JsonOption = False) -> None:
    """Make an API key, and print it: it is shown this once."""
    with connect() as client:
        made = client.keys.create(name, ttl=ttl)
    if json:
        print_json(made)
        return
    print(made.key)
    note(f"key {made.id} for {made.name}, {_until(made.expires_at)}; `stn key revoke {made.id}` takes it away")


def list_keys(*, json: JsonOption = False) -> None:
    """List the API keys, without their secrets."""
    with connect() as client:
        keys = client.keys.list()
    if json:
        print_json({"keys": keys})
    elif keys:
        print(table(("ID", "NAME", "MADE", "LAST USED", "HOLDS"), [_row(key) for key in keys]))
    else:
        print("no API keys; `stn key create NAME` makes one")


def _row(key: KeyView) -> tuple[str, ...]:
    used = "never" if key.last_used_at is None else ago(key.last_used_at)
    return (key.id, key.name, ago(key.created_at), used, _until(key.expires_at))


def revoke_key(key_id: KeyIdArgument, *, json: JsonOption = False) -> None:
    """Take an API key away: its next request is refused."""
    with connect() as client:
        client.keys.revoke(key_id)
    print_json({"revoked": key_id}) if json else print(f"revoked: {key_id}")


def create(name: DeploymentArgument, *, json: JsonOption = False) -> None:
    """Make a deployment. It needs sandbox.serves_others: true in station.yaml."""
    with connect() as client:
        made = client.deployments.create(name)
    print_json(made) if json else print(f"{name}: made, {made.id}; `stn deployment token {name}` makes it a token")


def list_(*, json: JsonOption = False) -> None:
    """List the deployments."""
    with connect() as client:
        found = client.deployments.list()
    if json:
        print_json({"deployments": found})
    elif found:
        heads = ("NAME", "ID", "MADE", "TOKENS", "SANDBOXES", "REMARK")
        rows = [
            (it.name, it.id, ago(it.created_at), f"generation {it.generation}", str(it.sandboxes), _remark(it.going))
            for it in found
        ]
        print(table(heads, rows))
    else:
        print("no deployments; `stn deployment create NAME` makes one")


def _remark(going: bool) -> str:
    return "its deletion is not done; delete it again" if going else ""


def token(name: DeploymentArgument, *, ttl: LifeOption = None, json: JsonOption = False) -> None:
    """Make an identity token of a deployment, and print it: it is shown this once."""
    with connect() as client:
        made = client.deployments.token(name, ttl=ttl)
    if json:
        print_json(made)
        return
    print(made.token)
    note(f"holds at {made.url}, {_until(made.expires_at)}; `stn deployment rotate {name}` ends it")


def rotate(name: DeploymentArgument, *, json: JsonOption = False) -> None:
    """End every identity token that a deployment has until now."""
    with connect() as client:
        view = client.deployments.rotate(name)
    print_json(view) if json else print(f"{name}: its tokens until now are worthless; `stn deployment token {name}`")


def delete(
    name: DeploymentArgument,
    *,
    force: Annotated[bool, typer.Option("--force", "-f", help="Its sandboxes and its stored files with it.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete a deployment, for good. One that has sandboxes or stored files needs --force."""
    with connect() as client:
        client.deployments.delete(name, force=force)
    print_json({"deleted": name}) if json else print(f"deleted: {name}")


def _until(at: float | None) -> str:
    if at is None:
        return "without end"
    return f"until {datetime.fromtimestamp(at, UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}"
