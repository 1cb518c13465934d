"""How words become requests, and text a terminal may see. No station."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from station.cli import app, files, run, shared, text
from station.core import errors
from station.core.display import escape


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("box:a", ("box", "a")),
        ("box:", ("box", ".")),
        ("box:/tmp/a:b", ("box", "/tmp/a:b")),
        ("box:d/e", ("box", "d/e")),
        ("agent:01J:default:a", ("agent:01J:default", "a")),
        ("agent:01J:default:", ("agent:01J:default", ".")),
        ("agent:01J:default:/tmp/a:b", ("agent:01J:default", "/tmp/a:b")),
        ("a/b:c:d/e", ("a/b:c", "d/e")),
        (":/a", None),
        ("a", None),
        ("-", None),
        ("./a:b", None),
        ("/a:b", None),
        ("~/a:b", None),
        (":a", None),
    ],
)
def test_a_side_of_cp_is_in_a_sandbox_when_it_has_a_name_and_a_colon(word: str, parts: tuple[str, str] | None):
    assert files.split(word) == parts


def test_variables_come_from_the_word_or_from_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HERE", "h")
    assert shared.parse_env(["A=1=2", "B=", "HERE"]) == {"A": "1=2", "B": "", "HERE": "h"}
    monkeypatch.delenv("HERE")
    with pytest.raises(errors.InvalidInput, match="HERE"):
        shared.parse_env(["HERE"])


@pytest.mark.parametrize(
    ("code", "words", "runtime", "expected"),
    [
        ("print()", ["a", "b"], None, ("print()", ["a", "b"], "python")),
        ("x", [], "bash", ("x", [], "bash")),
        (None, ["s.sh", "a"], None, ("echo", ["a"], "bash")),
        (None, ["s.js"], None, ("echo", [], "node")),
        (None, ["s"], None, ("echo", [], "python")),
        (None, ["s.sh"], "python", ("echo", [], "python")),
    ],
)
def test_code_its_arguments_and_its_runtime(tmp_path: Path, monkeypatch, code, words, runtime, expected):
    monkeypatch.chdir(tmp_path)
    for name in ("s", "s.sh", "s.js"):
        Path(name).write_text("echo")
    assert run._source(code, words, runtime) == expected


def test_what_to_run_must_be_given_and_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("binary").write_bytes(b"\xff\xfe")
    for words, kind in (
        ([], errors.InvalidInput),
        (["no"], errors.FileNotFound),
        (["binary"], errors.InvalidInput),
        (["."], errors.InvalidInput),
    ):
        with pytest.raises(kind):
            run._source(None, words, None)


def test_a_file_with_an_equals_sign_in_its_name_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a=b").write_bytes(b"1")
    Path("a").write_bytes(b"2")
    assert run._files(["a=b", "a=x/y"]) == {"a=b": b"1", "x/y": b"2"}


class TestArtifacts:
    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    @pytest.mark.parametrize(
        ("name", "wanted", "place"),
        [
            ("a.txt", {"a.txt": None}, "a.txt"),
            ("a.txt", {"a.txt": "b.txt"}, "b.txt"),
            ("d/a.txt", {"d/a.txt": "out/"}, "out/a.txt"),
            ("d/a.txt", {"**/*.txt": None}, "d/a.txt"),
            ("d/a.txt", {"**/*.txt": "out"}, "out/d/a.txt"),
            ("a.txt", {"./a.txt": "b.txt"}, "b.txt"),
            ("a.txt", {"/workspace/a.txt": "b.txt"}, "b.txt"),
            ("y/a.txt", {"x/**": "wrong", "y/**": "right"}, "right/y/a.txt"),
            ("a.txt", {"a.txt": "-"}, None),
            ("a.txt", {"*.txt": "-"}, None),
        ],
    )
    def test_where_one_goes(self, name: str, wanted: dict[str, str | None], place: str | None):
        assert run._places(name, list(wanted.items())) == [place and Path(place)]

    def test_one_that_was_asked_for_twice_goes_to_both_places(self):
        wanted: list[run.Wanted] = [("a.txt", "one"), ("*.txt", "two"), ("*.txt", "three"), ("*", None)]
        assert run._places("a.txt", wanted) == [Path("one"), Path("two/a.txt"), Path("three/a.txt")]

    @pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../../b"])
    def test_one_that_leads_out_is_refused(self, name: str):
        with pytest.raises(errors.PathRefused):
            run._places(name, [("*", None)])

    def test_code_that_ran_cannot_choose_a_file_of_the_users_to_replace(self):
        Path(".bashrc").write_text("mine")
        with pytest.raises(errors.AlreadyExists, match="DEST"):
            run._places(".bashrc", [("*", None)])
        assert run._places(".bashrc", [(".bashrc", None)]) == [Path(".bashrc")]


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"plain\n\ttext\r", b"plain\n\ttext\r"),
        (b"\x1b[31mred\x1b[0m", b"\x1b[31mred\x1b[0m"),
        (b"\x1b]52;c;aGk=\x07", b"\\x1b]52;c;aGk=\\x07"),
        (b"\x1b]0;title\x1b\\", b"\\x1b]0;title\\x1b\\"),
        (b"\x1bc\x1b[6n\x1b[2J", b"\\x1bc\\x1b[6n\\x1b[2J"),
        ("\x9b31m\u202e".encode(), b"\\x9b31m\\u202e"),
        (b"\xff\x00", "\ufffd\\x00".encode()),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_output_cannot_drive_a_terminal_however_it_is_cut(written: bytes, seen: bytes, size: int):
    terminal = Terminal()
    passage = text.Passage(terminal)
    for start in range(0, len(written), size):
        passage.write(written[start : start + size])
    passage.close()
    assert terminal.getvalue() == seen + (b"\x1b[0m" if b"\x1b[" in seen else b"")


def test_an_unfinished_sequence_is_shown_at_the_end_and_a_long_one_is_not_held_back():
    terminal = Terminal()
    passage = text.Passage(terminal)
    passage.write(b"\x1b[" + b"1" * 100_000)
    assert len(terminal.getvalue()) > 99_000
    passage.write(b"\x1b[3")
    passage.close()
    assert terminal.getvalue().endswith(b"\\x1b[3")


def test_into_a_pipe_every_byte_goes_as_it_is():
    pipe = io.BytesIO()
    passage = text.Passage(pipe)
    passage.write(b"\x1b]0;x\x07\xff")
    passage.close()
    assert pipe.getvalue() == b"\x1b]0;x\x07\xff"


def test_names_are_escaped_in_tables():
    assert "\x1b" not in text.table(("A", "B"), [("\x1b[2J", "x\ny")])
    assert escape("a\x1b\udcff\u202eü") == "a\\x1b\\xff\\u202eü"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "--bogus"], 125),
        (["exec", "box", "--bogus"], 125),
        (["ls", "--bogus"], 2),
        (["bogus"], 2),
        (["--home"], 2),
    ],
)
def test_a_wrong_option_is_no_exit_code_of_a_program(words: list[str], code: int, capsys: pytest.CaptureFixture[str]):
    assert app.run_app(words) == code
    assert "Error" in capsys.readouterr().err


def test_home_stands_before_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("STN_HOME", "/none")
    assert app.run_app(["--home", "/nowhere/x", "status"]) == 1
    assert app.run_app(["--home=/nowhere/y", "status", "--json"]) == 1
    out = capsys.readouterr().out
    assert "/nowhere/x" in out
    assert '"home": "/nowhere/y"' in out
