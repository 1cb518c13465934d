"""The programs that every fake box has: enough for ordinary calls, honest about the rest."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping

from station.guest.frames import STDOUT

from .process import FakeProcess, Program
from .shell import shell

_CHUNK = 32_768


async def _true(_process: FakeProcess) -> int:
    return 0


async def _false(_process: FakeProcess) -> int:
    return 1


async def _echo(process: FakeProcess) -> int:
    words = list(process.argv[1:])
    newline = True
    if words[:1] == ["-n"]:
        newline = False
        words = words[1:]
    await process.out(" ".join(words) + "\n" * newline)
    return 0


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "a": "\a", '"': '"'}
_ESCAPE = re.compile(r"\\(0?[0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)


def _unescape(match: re.Match[str]) -> str:
    text = match[1]
    if text[0] in "01234567":
        return os.fsdecode(bytes([int(text, 8) & 0xFF]))
    if text[0] == "x":
        return os.fsdecode(bytes([int(text[1:], 16)]))
    return _ESCAPES.get(text, "\\" + text)


async def _printf(process: FakeProcess) -> int:
    if len(process.argv) < 2:
        await process.err("printf: usage: printf FORMAT [ARGUMENTS]\n")
        return 2
    words = list(process.argv[2:])
    form = _ESCAPE.sub(_unescape, process.argv[1])

    def place(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        word = words.pop(0) if words else ""
        return word if match[1] == "s" else str(int(word or "0"))

    while True:  # the form serves again for what is left
        before = len(words)
        # Bytes that are no character alone come together again here: bytes, not text.
        await process.write(STDOUT, os.fsencode(re.sub(r"%([sd%])", place, form)))
        if not words or len(words) == before:
            return 0


async def _cat(process: FakeProcess) -> int:
    code = 0
    for name in process.argv[1:] or ["-"]:
        if name == "-":
            while piece := await process.stdin.read():
                await process.write(STDOUT, piece)
            continue
        try:
            file = process.files.open(name)
        except OSError as error:
            await process.err(f"cat: {name}: {error.strerror}\n")
            code = 1
            continue
        for offset in range(0, file.size, _CHUNK):
            await process.write(STDOUT, file.read(offset, _CHUNK))
    return code


async def _sleep(process: FakeProcess) -> int:
    try:
        seconds = sum(float(word.removesuffix("s")) for word in process.argv[1:])
    except ValueError:
        await process.err(f"sleep: invalid time interval {process.argv[1]!r}\n")
        return 1
    await process.sleep(seconds)
    return 0


async def _env(process: FakeProcess) -> int:
    end = "\n"
    words = list(process.argv[1:])
    if words[:1] == ["-0"]:
        end, words = "\0", words[1:]
    env = dict(process.env)
    if words[:1] == ["-i"]:
        env, words = {}, words[1:]
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if not words:
        await process.out("".join(f"{name}={value}{end}" for name, value in env.items()))
        return 0
    try:
        return await process.spawn(words, env=env).wait()
    except OSError as error:
        await process.err(f"env: {words[0]!r}: {error.strerror}\n")
        return 127


async def _pwd(process: FakeProcess) -> int:
    await process.out(posixpath.normpath(process.cwd) + "\n")
    return 0


PROGRAMS: Mapping[str, Program] = {
    "true": _true,
    "false": _false,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "sleep": _sleep,
    "env": _env,
    "pwd": _pwd,
    "sh": shell,
    "bash": shell,
}
