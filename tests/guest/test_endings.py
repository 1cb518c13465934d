from __future__ import annotations

import errno

import pytest

from station.core.endings import Ending, EndingKind
from station.core.errors import (
    AlreadyExists,
    Conflict,
    FileNotFound,
    InternalError,
    InvalidInput,
    LimitReached,
    NotARegularFile,
    PathRefused,
    StationError,
    StorageFull,
    TooLarge,
    Unavailable,
)
from station.core.records import Usage
from station.guest.endings import ExitKind, GuestExit, Reason
from station.guest.file_errors import check


def ended(kind: ExitKind, value: int = 0, reason: Reason = Reason.NONE) -> GuestExit:
    return GuestExit(kind, value, reason, 0, 0, 0, 1_500_000, 250_000, 2048, 3_000_000)


@pytest.mark.parametrize(
    ("exit_", "ending"),
    [
        (ended(ExitKind.EXITED), Ending.exited(0)),
        (ended(ExitKind.EXITED, 3), Ending.exited(3)),
        (ended(ExitKind.SIGNALLED, 11), Ending.signalled(11)),
        (ended(ExitKind.SIGNALLED, 9, Reason.TIMED_OUT), Ending(EndingKind.TIMED_OUT)),
        (ended(ExitKind.EXITED, 0, Reason.CANCELLED), Ending(EndingKind.CANCELLED)),
        (ended(ExitKind.SIGNALLED, 15, Reason.OUTPUT_LIMIT), Ending(EndingKind.OUTPUT_LIMIT)),
        (ended(ExitKind.LOST, 0, Reason.TIMED_OUT), Ending(EndingKind.TIMED_OUT)),
        (ended(ExitKind.LOST), Ending.lost("its supervisor was ended from inside the sandbox")),
    ],
)
def test_an_exit_becomes_a_typed_ending(exit_: GuestExit, ending: Ending) -> None:
    assert exit_.to_ending() == ending


@pytest.mark.parametrize(
    ("code", "program", "exit_code", "words"),
    [
        (errno.ENOENT, "frob", 127, "frob was not found in the PATH"),
        (errno.ENOENT, "/x/frob", 127, "/x/frob does not exist"),
        (errno.ENOTDIR, "/a/b", 127, "not a directory"),
        (errno.EACCES, "/tmp", 126, "may not be executed"),
        (errno.E2BIG, "ls", 126, "Argument list too long"),
    ],
)
def test_a_program_that_cannot_start_ends_as_in_a_shell_with_a_reason(
    code: int, program: str, exit_code: int, words: str
) -> None:
    ending = ended(ExitKind.NO_PROGRAM, code).to_ending(program=program)
    assert ending.exit_code == exit_code
    assert words in str(ending.reason)


def test_a_missing_working_directory_is_the_callers_mistake_and_named() -> None:
    with pytest.raises(InvalidInput, match=r"/no%0A/such cannot be used: No such file") as caught:
        ended(ExitKind.NO_DIRECTORY, errno.ENOENT).to_ending(cwd="/no\n/such")
    assert caught.value.detail == {"field": "cwd"}


def test_a_guest_without_means_is_lost_with_a_reason() -> None:
    ending = ended(ExitKind.NO_MEANS, errno.EAGAIN).to_ending()
    assert ending.kind is EndingKind.LOST
    assert "EAGAIN" in str(ending.reason)


@pytest.mark.parametrize(
    ("exit_", "kind"),
    [
        (ended(ExitKind.SIGNALLED, 9), EndingKind.OOM),
        (ended(ExitKind.EXITED, 137), EndingKind.OOM),
        (ended(ExitKind.LOST), EndingKind.OOM),
        (ended(ExitKind.EXITED, 0), EndingKind.EXITED),
        (ended(ExitKind.SIGNALLED, 9, Reason.TIMED_OUT), EndingKind.TIMED_OUT),
    ],
)
def test_only_what_looks_killed_ends_for_memory(exit_: GuestExit, kind: EndingKind) -> None:
    assert exit_.to_ending(oom=True).kind is kind


def test_usage_is_in_seconds() -> None:
    assert ended(ExitKind.EXITED).usage() == Usage(1.5, 0.25, 2048, 3.0)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOENT, FileNotFound),
        (errno.EEXIST, AlreadyExists),
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EFBIG, TooLarge),
        (errno.ENOTEMPTY, Conflict),
        (errno.EISDIR, NotARegularFile),
        (errno.ELOOP, PathRefused),
        (errno.EXDEV, PathRefused),
        (200, NotARegularFile),
        (201, PathRefused),
        (202, InvalidInput),
        (203, InvalidInput),
        (99, InternalError),
    ],
)
def test_each_code_of_a_file_primitive_is_an_error_that_names_the_sandbox_path_alone(
    code: int, error: type[StationError]
) -> None:
    with pytest.raises(error) as caught:
        check(ended(ExitKind.EXITED, code), "write", "/workspace/a\n", b"open /host/secret/a: no\nbad name\n")
    assert type(caught.value) is error
    assert "/workspace/a%0A" in caught.value.message
    assert "/host" not in caught.value.message
    assert caught.value.detail["path"] == "/workspace/a%0A"


def test_moving_across_file_systems_is_a_conflict_not_an_escape() -> None:
    with pytest.raises(Conflict, match="another file system"):
        check(ended(ExitKind.EXITED, errno.EXDEV), "rename", "/workspace/a")


def test_a_shrinking_file_may_be_read_again() -> None:
    with pytest.raises(Conflict) as caught:
        check(ended(ExitKind.EXITED, errno.EIO), "read", "/workspace/a")
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("exit_", "error"),
    [
        (ended(ExitKind.SIGNALLED, 9, Reason.TIMED_OUT), Unavailable),
        (ended(ExitKind.SIGNALLED, 9, Reason.OUTPUT_LIMIT), TooLarge),
        (ended(ExitKind.SIGNALLED, 9), Unavailable),
        (ended(ExitKind.NO_MEANS, errno.EAGAIN), LimitReached),
        (ended(ExitKind.EXITED, 0, Reason.CANCELLED), Unavailable),
    ],
)
def test_a_primitive_that_did_not_end_by_itself_is_never_success(exit_: GuestExit, error: type[StationError]) -> None:
    with pytest.raises(error):
        check(exit_, "write", "/workspace/a")


def test_a_refused_archive_says_which_name_with_escapes() -> None:
    with pytest.raises(InvalidInput, match=r"refused, and nothing was changed: \.\./x%1B: leads out"):
        check(ended(ExitKind.EXITED, 203), "unpack", "/workspace", b"noise\n../x\x1b: leads out\n")
