"""Defences of a station as a server: whose settings and keys it takes, TLS, backups."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

BACKUP = "tests/server/test_backup.py"
ENVIRONMENT = "tests/server/test_environment.py"
TLS = "tests/server/test_tls.py"


def py(name: str, text: str, instead: str) -> Edit:
    return Edit(f"src/station/{name}.py", text, instead)


UPKEEP: tuple[Mutant, ...] = (
    Mutant(
        "variables-of-others",
        "whoever may write a .env in the folder of the operator sets up the station",
        (py("server/environment", "if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):", "if False:"),),
        (f"{ENVIRONMENT}::test_a_file_that_others_may_write_is_refused",),
    ),
    Mutant(
        "broken-line",
        "a line of a .env that may hold a secret is repeated",
        (py("server/environment", "is not NAME=VALUE, or has", "({text}) is not NAME=VALUE, or has"),),
        (f"{ENVIRONMENT}::test_a_broken_line_is_told_by_its_number_and_never_quoted",),
    ),
    Mutant(
        "key-of-others",
        "a key of TLS that others can read is used",
        (py("server/net/tls", "if found.st_mode & open_to:", "if False:"),),
        (f"{TLS}::test_a_key_that_others_can_read_is_refused",),
    ),
    Mutant(
        "half-a-renewal",
        "a certificate that is renewed before its key ends all TLS",
        (py("server/net/tls", "(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context)", "(self.context,)"),),
        (f"{TLS}::test_a_renewal_that_is_half_done_or_wrong_changes_nothing",),
        by=("SSLError",),
    ),
    Mutant(
        "variables-of-a-project",
        "a project that is looked at says who the operator is, and which program runs",
        (py("server/environment", "if folder is not home:", "if False:"),),
        (f"{ENVIRONMENT}::test_a_project_says_neither_what_runs_nor_who_the_operator_is",),
    ),
    Mutant(
        "holes-in-a-backup",
        "a file of terabytes that are not there keeps a backup busy for days",
        (py("server/upkeep/backup", "if spare > self._left:", "if spare > 1 << 40:"),),
        (f"{BACKUP}::test_holes_and_names_of_a_sandbox_are_read_up_to_a_bound",),
    ),
    Mutant(
        "facts-of-an-archive",
        "an archive of a few KiB takes all memory",
        (py("server/upkeep/archive", "if self._left < 0:", "if False:"),),
        (f"{BACKUP}::test_what_no_backup_says_of_a_member_is_refused_before_it_costs_anything",),
        by=("AssertionError", "TypeError", "RecursionError"),
    ),
    Mutant(
        "modes-of-an-archive",
        "an archive opens the operator's token to others",
        (py("server/upkeep/restore", "in (OUTPUT, SANDBOXES) else private", "else private"),),
        (f"{BACKUP}::test_what_is_secret_is_this_users_alone_whatever_the_archive_says",),
    ),
    Mutant(
        "handshakes",
        "strangers use up the descriptors of the station by handshakes that they do not finish",
        (py("server/net/http", "if shaking >= MAX_HANDSHAKES:", "if False:"),),
        (f"{TLS}::test_handshakes_of_strangers_are_bounded",),
    ),
    Mutant(
        "links-of-an-archive",
        "an archive writes beyond the state directory by a link that it brings",
        (
            py(
                "server/upkeep/restore",
                "_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW",
                "_FOLDER = os.O_RDONLY",
            ),
        ),
        (f"{BACKUP}::test_a_hostile_archive_writes_nowhere_else",),
    ),
    Mutant(
        "places-of-an-archive",
        "an archive writes beyond the state directory by its names",
        (py("server/upkeep/restore", 'part in ("", ".", "..")', 'part in ("",)'),),
        (f"{BACKUP}::test_a_hostile_archive_writes_nowhere_else",),
    ),
    Mutant(
        "damage-of-an-archive",
        "a damaged backup is restored",
        (py("server/upkeep/archive", "        if not same:", "        if False:"),),
        (f"{BACKUP}::test_a_damaged_or_cut_archive_changes_nothing",),
    ),
    Mutant(
        "links-in-a-backup",
        "a backup reads what a link in a sandbox leads to",
        (py("server/upkeep/walk", "os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC", "os.O_DIRECTORY"),),
        (f"{BACKUP}::test_a_folder_that_became_a_link_is_not_followed",),
    ),
)
