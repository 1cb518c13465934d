"""All commands in one place, and how their failures leave."""

from __future__ import annotations

import os
import sys

import typer

from station.core.errors import StationError

from . import access, archive, execute, files, mcp, run, sandboxes, serve, stations, store, upkeep
from .shared import STATION_FAILED, complain, note

app = typer.Typer(
    help="Run code in a sandbox, and keep one by name.",
    epilog="The state directory is --home DIR before the command, else STN_HOME, else station below ~/.local/state.",
    # By hand below, like --home: an option before the command would load pydantic for every command.
    add_help_option=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


for _module in (run, sandboxes, execute, files, store, access, mcp, serve, stations, upkeep, archive):
    _module.register(app)

# The root of what a wrong command line raises; typer has no public name for it.
_USAGE: type[typer.BadParameter] = typer.BadParameter.__mro__[2]
_RUNS_A_PROGRAM = {"run", "exec"}


def run_app(arguments: list[str]) -> int:
    """The exit code of `stn ARGUMENTS`."""
    try:
        arguments = _take_home(arguments)
        if not arguments or arguments[0] in ("-h", "--help"):
            return _help()
        arguments = ["version", *arguments[1:]] if arguments[0] == "--version" else arguments
        code = app(args=arguments, prog_name="stn", standalone_mode=False)
        sys.stdout.flush()
    except _USAGE as error:
        error.show()
        if "exec" in _words(arguments) and "--" not in arguments:
            note("the command stands after --, as in: stn exec NAME -- ls -la")
        # 2 could be the program's own where one was to be run.
        return STATION_FAILED if _RUNS_A_PROGRAM & _words(arguments) else 2
    except typer.Abort:  # Ctrl-C
        note("cancelled")
        return 130
    except StationError as error:
        return complain(error, as_json=_wants_json(arguments))
    except BrokenPipeError:
        return _unread()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # which is what click makes of it
            return _unread()
        raise
    except OSError as error:
        where = f" {error.filename}:" if error.filename else ""
        print(f"stn:{where} {error.strerror or error}", file=sys.stderr)
        return STATION_FAILED
    return code if isinstance(code, int) else 0


def _unread() -> int:
    """Whoever read our output has gone; the flush at exit must not complain about it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def _help() -> int:
    command = typer.main.get_command(app)
    print(command.get_help(typer.Context(command, info_name="stn", **app.info.context_settings or {})))
    return 0


def _take_home(arguments: list[str]) -> list[str]:
    if not arguments or arguments[0].partition("=")[0] != "--home":
        return arguments
    _, equals, home = arguments[0].partition("=")
    rest = arguments[1:] if equals else arguments[2:]
    home = home if equals else "".join(arguments[1:2])
    if not home:
        raise typer.BadParameter("--home needs a directory")
    # Through the environment, so that the SDK and a station that it starts see the same.
    os.environ["STN_HOME"] = os.path.abspath(home)
    return rest


def _own(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _words(arguments: list[str]) -> set[str]:
    return set(_own(arguments)[:3])


def _wants_json(arguments: list[str]) -> bool:
    return "--json" in _own(arguments)
