"""`sh` of a fake box: simple command lines, and a clear refusal of everything else.

Words, quotes, `$NAME`, `${NAME}`, `$?`, `$1`, `"$@"`, `NAME=value`, `;`, newline, `&&`, `||`, `&`, comments, `>`, `>>`,
`<`, `2>`, `2>&1`, `>&2`, and the words cd, exit, exec, export, set, `:`. Other programs are those of the box. Pipes,
substitution, globs, here-documents and control words are refused before anything runs: exit code 2.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .process import Child, FakeProcess, Stdin
from .tree import File

_RESERVED = {
    "if",
    "then",
    "else",
    "fi",
    "for",
    "while",
    "until",
    "do",
    "done",
    "case",
    "esac",
    "function",
    "{",
    "}",
    "!",
}
_REDIRECT = re.compile(r"(\d?)(>>|>&|>|<)")
_NAME = re.compile(r"[A-Za-z_]\w*|[?@$#]|\d")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)


class Unsupported(Exception):
    """Something that this shell does not know; nothing has run."""


@dataclass
class _Piece:
    """A part of a word: text as it is, or a variable."""

    text: str
    variable: bool = False


_Word = list[_Piece]


@dataclass
class _Redirect:
    stream: int
    how: str
    goal: _Word


@dataclass
class _Command:
    words: list[_Word] = field(default_factory=list)
    redirects: list[_Redirect] = field(default_factory=list)
    condition: str = ";"
    """What stands before it: `;`, `&&` or `||`."""
    background: bool = False


class _Reader:
    """A script into commands."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\\\n", "")
        self._at = 0

    def commands(self) -> Iterator[_Command]:
        condition = ";"
        while True:
            command = self._command()
            command.condition = condition
            separator = self._separator()
            command.background = separator == "&"
            if command.words or command.redirects:
                yield command
            elif separator in ("&&", "||", "&"):
                raise Unsupported(f"nothing before {separator}")
            if not separator:
                return
            condition = separator if separator in ("&&", "||") else ";"

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _command(self) -> _Command:
        command = _Command()
        while True:
            while self._peek() in (" ", "\t"):
                self._at += 1
            if self._peek() == "#":
                self._at = (self._text + "\n").find("\n", self._at)
            if self._peek() in ("", ";", "&", "|", "\n"):
                return command
            if redirect := _REDIRECT.match(self._text, self._at):
                command.redirects.append(self._redirect(redirect))
                continue
            word = self._word()
            if not command.words and len(word) == 1 and word[0].text in _RESERVED and not word[0].variable:
                raise Unsupported(f"{word[0].text} is not known here")
            command.words.append(word)

    def _redirect(self, match: re.Match[str]) -> _Redirect:
        self._at = match.end()
        if match[2] == "<" and self._peek() in ("<", "&", "(", ">"):
            raise Unsupported("here-documents and their like are not known here")
        while self._peek() in (" ", "\t"):
            self._at += 1
        return _Redirect(int(match[1] or ("0" if match[2] == "<" else "1")), match[2], self._word())

    def _separator(self) -> str:
        for mark in ("&&", "||", ";;", ";", "\n", "&", "|"):
            if self._text.startswith(mark, self._at):
                self._at += len(mark)
                if mark in ("|", ";;"):
                    raise Unsupported("pipes are not known here" if mark == "|" else ";; is not known here")
                return mark
        return ""

    def _word(self) -> _Word:
        word: _Word = []
        while (char := self._peek()) not in ("", " ", "\t", "\n", ";", "&", "|", ">", "<"):
            self._at += 1
            if char == "'":
                word.append(_Piece(self._until("'")))
            elif char == '"':
                self._double(word)
            elif char == "\\":
                word.append(_Piece(self._peek()))
                self._at += 1
            elif char == "$":
                word.append(self._variable())
            elif char in "`*?[(){}~" and not (char == "~" and word):
                raise Unsupported(f"{char} is not known here (quote it to mean itself)")
            else:
                word.append(_Piece(char))
        if not word:
            raise Unsupported("a word is missing")
        return [_Piece("".join(piece.text for piece in word))] if not any(p.variable for p in word) else word

    def _until(self, quote: str) -> str:
        end = self._text.find(quote, self._at)
        if end < 0:
            raise Unsupported("a quote is not closed")
        text, self._at = self._text[self._at : end], end + 1
        return text

    def _double(self, word: _Word) -> None:
        word.append(_Piece(""))
        while (char := self._peek()) != '"':
            self._at += 1
            if not char:
                raise Unsupported("a quote is not closed")
            if char == "`":
                raise Unsupported("substitution is not known here")
            if char == "\\" and self._peek() in ('"', "\\", "$", "`"):
                char = self._peek()
                self._at += 1
            word.append(self._variable() if char == "$" and self._text[self._at - 2] != "\\" else _Piece(char))
        self._at += 1

    def _variable(self) -> _Piece:
        if self._peek() in ("(", "'"):
            raise Unsupported("substitution is not known here")
        if self._peek() == "{":
            self._at += 1
            name = self._until("}")
            if not _NAME.fullmatch(name):
                raise Unsupported(f"${{{name}}} is not known here")
            return _Piece(name, variable=True)
        match = _NAME.match(self._text, self._at)
        if not match:
            return _Piece("$")
        self._at = match.end()
        return _Piece(match[0], variable=True)


class _Exit(Exception):
    def __init__(self, code: int) -> None:
        self.code = code & 0xFF


class _Shell:
    def __init__(self, process: FakeProcess, arguments: list[str]) -> None:
        self._process = process
        self._arguments = arguments
        self._env = dict(process.env)
        self._local: dict[str, str] = {}
        self._cwd = process.cwd
        self._status = 0
        self._errexit = False

    async def run(self, commands: list[_Command]) -> int:
        try:
            for index, command in enumerate(commands):
                skip = {"&&": self._status != 0, "||": self._status == 0}.get(command.condition, False)
                if skip:
                    continue
                self._status = await self._one(command)
                tested = index + 1 < len(commands) and commands[index + 1].condition in ("&&", "||")
                if self._errexit and self._status and not tested:
                    return self._status
        except _Exit as end:
            return end.code
        return self._status

    def _expand(self, word: _Word) -> str:
        return "".join(self._value(piece.text) if piece.variable else piece.text for piece in word)

    def _value(self, name: str) -> str:
        special = {"?": str(self._status), "$": str(self._process.pid), "#": str(len(self._arguments) - 1)}
        if name in special:
            return special[name]
        if name.isdigit():
            return self._arguments[int(name)] if int(name) < len(self._arguments) else ""
        if name == "@":
            return " ".join(self._arguments[1:])
        return self._local.get(name, self._env.get(name, ""))

    def _words(self, command: _Command) -> list[str]:
        words: list[str] = []
        for word in command.words:
            if [piece.text for piece in word if piece.variable] == ["@"]:
                words += self._arguments[1:]
            else:
                words.append(self._expand(word))
        return words

    async def _one(self, command: _Command) -> int:
        words, assigned = self._words(command), {}
        while words and (match := _ASSIGNMENT.match(words[0])):
            assigned[match[1]] = words.pop(0)[match.end() :]
        try:
            sinks, stdin = self._open(command)
        except OSError as error:
            await self._complain(f"{error.filename}: {error.strerror}")
            return 1
        if not words:
            self._local.update(assigned)
            self._env.update({name: value for name, value in assigned.items() if name in self._env})
            return 0
        builtin = await self._builtin(words)
        if builtin is not None:
            return builtin
        leaves = words[0] == "exec"
        words = words[1:] if leaves else words
        try:
            child = self._process.spawn(
                words, env={**self._env, **assigned}, cwd=self._cwd, sinks=sinks,
                stdin=Stdin(lambda: None, is_open=False) if command.background else stdin,
            )  # fmt: skip
        except OSError as error:
            await self._complain(f"{words[0]}: {'not found' if error.errno == errno.ENOENT else error.strerror}")
            return 127 if error.errno == errno.ENOENT else 126
        return await self._finish(child, leaves=leaves, background=command.background)

    async def _finish(self, child: Child, *, leaves: bool, background: bool) -> int:
        if background:
            return 0
        code = await child.wait()
        if leaves:
            raise _Exit(code)
        return code

    async def _builtin(self, words: list[str]) -> int | None:
        match words:
            case [":", *_]:
                return 0
            case ["exit", *rest] if len(rest) < 2:
                raise _Exit(int(rest[0]) if rest and rest[0].isdigit() else self._status)
            case ["cd", *rest]:
                return await self._change_directory(rest[0] if rest else self._value("HOME"))
            case ["export", *names]:
                for name in names:
                    key, equals, value = name.partition("=")
                    self._env[key] = value if equals else self._value(key)
                return 0
            case ["set", ("-e" | "+e") as flag]:
                self._errexit = flag == "-e"
                return 0
        return None

    async def _change_directory(self, path: str) -> int:
        goal = posixpath.normpath(posixpath.join(self._cwd, path))
        if self._process.files.is_directory(goal):
            self._cwd = goal
            return 0
        await self._complain(f"cd: can't cd to {path}")
        return 2

    def _open(self, command: _Command) -> tuple[dict[int, File | int | None], Stdin | None]:
        """The sinks and the stdin of a command's redirects, opened from left to right."""
        sinks: dict[int, File | int | None] = {}
        stdin: Stdin | None = None
        for redirect in command.redirects:
            goal = self._expand(redirect.goal)
            path = posixpath.join(self._cwd, goal)
            if redirect.how == ">&":
                sinks[redirect.stream] = sinks.get(int(goal), int(goal))
                continue
            try:
                if redirect.how == "<":
                    stdin = Stdin(lambda: None, is_open=True)
                    if path != "/dev/null":
                        stdin.feed(self._process.files.read_bytes(path))
                    stdin.close()
                elif path == "/dev/null":
                    sinks[redirect.stream] = None
                else:
                    sinks[redirect.stream] = self._sink(path, append=redirect.how == ">>")
            except OSError as error:
                raise OSError(error.errno, error.strerror, goal) from error
        return sinks, stdin

    def _sink(self, path: str, *, append: bool) -> File:
        files = self._process.files
        return files.open(path) if append and files.exists(path) else files.create(path)

    async def _complain(self, text: str) -> None:
        await self._process.err(f"{posixpath.basename(self._process.argv[0])}: {text}\n")


async def shell(process: FakeProcess) -> int:
    """`sh -c LINE [NAME ARGS]`, `sh FILE [ARGS]`, `sh` with the script on stdin. `-e` is known."""
    words = list(process.argv[1:])
    errexit = False
    while words and words[0] in ("-e", "--norc", "--noprofile", "-p"):
        errexit = errexit or words.pop(0) == "-e"
    try:
        if words[:1] in (["-c"], ["-ec"]):
            errexit = errexit or words[0] == "-ec"
            text, arguments = words[1], words[2:] or [process.argv[0]]
        elif words:
            text, arguments = os.fsdecode(process.files.read_bytes(words[0])), words
        else:
            text, arguments = os.fsdecode(await process.stdin.read_all()), [process.argv[0]]
        commands = list(_Reader(text).commands())
    except OSError as error:
        await process.err(f"sh: {words[0]}: {error.strerror}\n")
        return 127
    except (Unsupported, IndexError) as error:
        await process.err(f"sh: the shell of a fake box is small: {error}; register a program for this\n")
        return 2
    body = _Shell(process, arguments)
    if errexit:
        await body.run(list(_Reader("set -e").commands()))
    return await body.run(commands)
