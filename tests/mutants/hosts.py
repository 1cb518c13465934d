"""Defences of the station: who may ask it, what it lets in, and what it keeps when it dies."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

GUARD = "tests/server/test_guard.py"
ARCHIVE = "tests/worker/test_archive.py"
ATTACK = f"{ARCHIVE}::test_an_attack_by_archive_is_refused_with_a_reason"
ORPHANS = "tests/worker/test_orphans.py"
RECONCILE = "tests/control/test_reconcile.py"
REGISTRY = "tests/store/test_registry.py"
TOOLS = "tests/attacks/test_tools.py"


def py(name: str, text: str, instead: str) -> Edit:
    return Edit(f"src/station/{name}.py", text, instead)


_CALLERS = (
    Mutant(
        "origin-check",
        "a page of any origin calls the station",
        (py("server/access/guard", 'if not _all_of(_ORIGIN, ours, _values(headers, b"origin")):', "if False:"),),
        (f"{GUARD}::test_a_foreign_origin_is_refused_whatever_the_token", f"{GUARD}::test_two_origins_are_refused"),
    ),
    Mutant(
        "host-check",
        "a page reaches the station by a name of its own that leads to loopback",
        (
            py(
                "server/access/guard",
                'if not _all_of(_AUTHORITY, ours, found := _values(headers, b"host")) or not found:',
                "if False:",
            ),
        ),
        (
            f"{GUARD}::test_hd_w07_another_host_is_misdirected_whatever_the_token",
            f"{GUARD}::test_hd_w07_a_rebound_name_is_answered_421_and_the_same_request_by_our_name_200",
        ),
    ),
    Mutant(
        "token-check",
        "anybody on this machine calls the station over TCP",
        (
            py(
                "server/access/access",
                "self._operator and hmac.compare_digest(token, self._operator)",
                "self._operator",
            ),
        ),
        ("tests/server/test_tokens.py::test_the_operators_own_token_stays_what_it_is",),
    ),
    Mutant(
        "one-token-a-request",
        "what is let in is a question of which of two tokens is looked at",
        (py("server/access/guard", "if len(shown) == 1 else None", "if shown else None"),),
        (f"{GUARD}::test_two_tokens_are_one_too_many",),
    ),
    Mutant(
        "only-http-is-guarded",
        "a web socket comes past the guard",
        (py("server/access/guard", 'if scope["type"] != "http":', "if False:"),),
        (f"{GUARD}::test_what_is_no_http_request_comes_past_neither_door",),
        by=("KeyError",),
    ),
    Mutant(
        "mode-of-the-socket",
        "another user of this machine connects to the station's socket",
        (py("server/home", "before = os.umask(0o177)", "before = os.umask(0)"),),
        ("tests/server/test_serve.py::test_a_station_serves_a_private_socket_and_ends_cleanly",),
    ),
    Mutant(
        "mode-of-the-token",
        "another user of this machine reads the token",
        (py("durable", "flags, 0o600)", "flags, 0o644)"),),
        ("tests/server/test_listen.py::test_the_token_is_made_once_and_for_this_user_alone",),
    ),
    Mutant(
        "token-of-others",
        "a token that others could have read or made is taken",
        (
            py("server/access/operator_token", "if stat.S_IMODE(found.st_mode) & 0o077:", "if False:"),
            py("server/access/operator_token", "if found.st_uid != os.geteuid():", "if False:"),
        ),
        ("tests/server/test_listen.py::test_a_token_that_others_could_know_is_refused",),
    ),
    Mutant(
        "loopback-alone",
        "a station without TLS listens on every address of the machine",
        (py("server/net/listen", "if not guarded and not _is_loopback(_ip(address.host)):", "if False:"),),
        ("tests/server/test_listen.py::test_any_other_address_needs_tls_here_or_in_front",),
    ),
    Mutant(
        "one-station",
        "two stations write one state directory",
        (py("server/home", "fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),),
        ("tests/server/test_serve.py::test_a_second_serve_ends_within_a_second_and_names_the_first",),
        by=("TimeoutExpired", "TimeoutError"),
    ),
    Mutant(
        "owner-of-an-id",
        "an agent reaches the sandbox of another by its id",
        (py("mcp/caller", "or not self.scope.owns(sandbox.name)", ""),),
        (f"{TOOLS}::test_hd_t3_nobody_elses_sandbox_is_reached_by_any_of_its_names",),
    ),
    Mutant(
        "owner-of-a-key",
        "an agent opens the sandbox of another by its name",
        (py("mcp/scope", 'check_name(f"{self.prefix}:{key}")', "check_name(key or DEFAULT_KEY)"),),
        (f"{TOOLS}::test_hd_t3_nobody_elses_sandbox_is_opened_by_a_key",),
    ),
    Mutant(
        "kind-of-an-id",
        "a sandbox is reached by ids that outlive the life they were given for",
        (py("mcp/caller", "if id_of(sandbox) != sandbox_id or", "if"),),
        (f"{TOOLS}::test_hd_t3_nobody_elses_sandbox_is_reached_by_any_of_its_names",),
    ),
    Mutant(
        "escapes-in-answers",
        "what code writes drives the terminal that shows an answer",
        (
            py(
                "core/display",
                "lambda found: found[0] if found[0] in keep else _shown(found[0])",
                "lambda found: found[0]",
            ),
        ),
        (f"{TOOLS}::test_hd_w01_output_drives_no_terminal",),
    ),
)

_FILES = (
    Mutant(
        "paths-of-the-file-tools",
        "the file tools work anywhere in a box",
        (py("core/paths", "for root in ROOTS:", 'for root in (*ROOTS, ""):'),),
        ("tests/core/test_paths.py::test_a_path_outside_the_roots_is_refused",),
    ),
    Mutant(
        "tar-dot-dot",
        "a member of an archive is named with `..`",
        (py("worker/tarcheck", 'if ".." in parts:', "if False:"),),
        (f"{ATTACK}[dot-dot]", f"{ATTACK}[pax-path]"),
    ),
    Mutant(
        "tar-absolute",
        "a member of an archive has an absolute name",
        (py("worker/tarcheck", 'if name.startswith("/"):', "if False:"),),
        (f"{ATTACK}[absolute]", f"{ATTACK}[pax-absolute]"),
    ),
    Mutant(
        "tar-kinds",
        "hard links, devices and fifos are let in as files",
        (
            py(
                "worker/tarcheck",
                "if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):",
                "if False:",
            ),
        ),
        (f"{ATTACK}[hardlink]", f"{ATTACK}[char-device]", f"{ATTACK}[block-device]", f"{ATTACK}[fifo]"),
    ),
    Mutant(
        "tar-links-out",
        "an archive brings a link that leads out of it",
        (
            py(
                "worker/tarcheck",
                'if not target.startswith("/") and link_leads_out(target, path.count("/")):',
                "if False:",
            ),
        ),
        (f"{ATTACK}[link-out]", f"{ATTACK}[link-out-deeper]", f"{ATTACK}[link-through-link]"),
    ),
    Mutant(
        "tar-through-links",
        "a member is written through a link of the archive",
        (py("worker/tarcheck", 'if there in ("l", "f"):', "if False:"),),
        (f"{ATTACK}[through-a-link]", f"{ATTACK}[through-an-absolute-link]"),
    ),
    Mutant(
        "tar-duplicates",
        "a later member takes the place of an earlier one",
        (py("worker/tarcheck", 'if there is not None and not (there == "p" and kind == "d"):', "if False:"),),
        (f"{ATTACK}[duplicate]", f"{ATTACK}[duplicate-link]", f"{ATTACK}[through-a-later-link]"),
    ),
    Mutant(
        "tar-ratio",
        "a small archive unpacks to any size",
        (py("worker/archive", "if self._out > _RATIO_FREE_BYTES + self._ratio * self._in:", "if False:"),),
        (f"{ATTACK}[bomb]",),
    ),
    Mutant(
        "tar-bounds",
        "an archive has any number of members and bytes",
        (
            py("worker/tarcheck", "if self._bytes > self._caps.total_bytes:", "if False:"),
            py("worker/tarcheck", "if len(self._kinds) > self._caps.members:", "if False:"),
        ),
        (f"{ARCHIVE}::test_members_and_bytes_are_bounded",),
    ),
    Mutant(
        "tar-whole-or-not",
        "an archive that was cut is taken for a whole one",
        (py("worker/archive", "if not checker.ended:", "if False:"),),
        (f"{ATTACK}[no-end]",),
    ),
    Mutant(
        "spool-bound",
        "the output of a command fills the disk of the station",
        (py("worker/spool", "if stale >= PINNED:", "if False:"),),
        ("tests/worker/test_spool.py::test_beyond_the_bound_the_middle_goes_and_readers_are_told_where",),
    ),
    Mutant(
        "memory-of-a-run",
        "the output of a run fills the memory of the station",
        (py("worker/headtail", "if len(self._tail) > 2 * tail:", "if False:"),),
        ("tests/worker/test_headtail.py::test_the_memory_of_a_run_is_bounded_whatever_it_writes",),
    ),
    Mutant(
        "back-pressure",
        "a guest that does not wait for acknowledgements fills the memory of the station",
        (py("guest/process", "if self._queued > 2 * self._ring:", "if False:"),),
        ("tests/guest/test_session.py::test_a_guest_that_ignores_back_pressure_cannot_fill_the_memory",),
        by=("Timeout", "TimeoutError"),
    ),
    Mutant(
        "gaps-of-a-guest",
        "a guest that leaves out output without end fills memory and disk",
        (py("guest/process", "if self._gaps_left < 0:", "if False:"),),
        ("tests/guest/test_hostile.py::test_gaps_without_end_neither_stop_the_loop_nor_fill_memory_and_disk",),
        by=("Timeout", "TimeoutError"),
    ),
    Mutant(
        "nonce-of-the-hello",
        "what an earlier session left in the stream is taken for the guest's answer",
        (
            py(
                "guest/frames",
                "found = data.find(nonce, _HEADER_SIZE)",
                "found = _HEADER_SIZE if len(data) > 64 else -1",
            ),
        ),
        (
            "tests/guest/test_frames.py::test_resynchronising_discards_all_before_the_hello_with_the_nonce",
            "tests/guest/test_frames.py::test_a_nonce_in_the_output_of_an_earlier_session_is_no_hello",
        ),
        by=("ProtocolError",),
    ),
    Mutant(
        "resynchronise-after-a-hello",
        "half a frame of a dead session swallows every hello of the next one",
        (py("guest/handshake", "await stream.send(bytes(RESYNC_ZEROS) + hello)", "await stream.send(hello)"),),
        ("tests/guest/test_session.py::test_a_hello_without_answer_is_repeated_behind_zeros",),
        by=("TimeoutError", "BoxLost"),
    ),
)

_LIVES = (
    Mutant(
        "fence-of-a-record",
        "who writes late overwrites what another has written",
        (
            py(
                "store/rows",
                'f"WHERE {self.key} = ? AND {self.revision} = ?",\n            (document, revision, key, before),',
                'f"WHERE {self.key} = ?",\n            (document, revision, key),',
            ),
        ),
        (
            f"{REGISTRY}::test_a_write_under_an_old_fence_changes_nothing",
            f"{REGISTRY}::test_of_racing_writers_one_wins_each_round",
        ),
    ),
    Mutant(
        "claim-of-a-name",
        "two opens of one name make two sandboxes",
        (
            py(
                "store/rows",
                "INSERT INTO {self.table}",
                "INSERT OR REPLACE INTO {self.table}",
            ),
        ),
        (f"{REGISTRY}::test_a_name_is_claimed_once", f"{REGISTRY}::test_of_racing_claims_one_wins"),
    ),
    Mutant(
        "durable-records",
        "an acknowledged record is lost with the power",
        (py("store/database", 'synchronous="FULL"', 'synchronous="OFF"'),),
        (
            "tests/store/test_sqlite_files.py::test_the_registry_survives_power_loss_and_the_journal_does_not_wait_for_the_disk",
        ),
    ),
    Mutant(
        "locks-of-sandboxes",
        "two changes of one sandbox happen at once",
        (py("control/locks", "async with lock:\n                yield", "yield"),),
        ("tests/control/test_sandboxes.py::test_of_fifty_racing_opens_one_makes_a_box",),
        by=("StationError",),
    ),
    Mutant(
        "label-sweep",
        "a box without a record lives for ever",
        (py("worker/orphans", "if now - since >= GRACE_SECONDS]", "if False]"),),
        (
            f"{ORPHANS}::test_a_box_whose_sandbox_has_none_goes",
            f"{ORPHANS}::test_a_box_of_an_older_generation_goes_and_the_live_one_stays",
        ),
    ),
    Mutant(
        "label-sweep-at-the-start",
        "what a killed station left is not looked for by the next one (nor by its sweep)",
        (
            py("worker/reconcile", "await destroy_by_ref(acting.backends[box.ref.backend], box.ref)", "pass"),
            py("worker/orphans", "if now - since >= GRACE_SECONDS]", "if False]"),
        ),
        (
            f"{RECONCILE}::test_an_orphan_and_a_dead_pool_box_go_and_a_foreign_box_stays",
            "tests/chaos/test_kill.py::test_hd_d02_the_boxes_of_a_dead_stations_pool_are_swept",
        ),
        by=("TimeoutError",),
    ),
    Mutant(
        "grace-of-the-sweep",
        "the sweep takes a box that is just being made",
        (py("worker/orphans", "if now - since >= GRACE_SECONDS]", "if True]"),),
        (f"{ORPHANS}::test_a_box_that_is_just_seen_gets_time",),
    ),
    Mutant(
        "second-look-of-the-sweep",
        "the sweep destroys a box whose record was written meanwhile",
        (py("worker/boxes", "if not await unwanted():", "if False:"),),
        (f"{ORPHANS}::test_a_record_that_appears_at_the_last_moment_saves_the_box",),
    ),
    Mutant(
        "boxes-of-others",
        "a station destroys the boxes of another",
        (py("worker/reconcile", "if seen is not None and seen.labels.station != station:", "if False:"),),
        (f"{RECONCILE}::test_an_orphan_and_a_dead_pool_box_go_and_a_foreign_box_stays",),
    ),
    Mutant(
        "generation-of-a-box",
        "a box of an earlier life is taken for the present one",
        (py("worker/reconcile", "if seen is not None and seen.labels.generation != record.generation:", "if False:"),),
        (f"{RECONCILE}::test_a_box_of_an_older_generation_goes_and_the_current_one_is_adopted",),
    ),
    Mutant(
        "silent-backends",
        "boxes that could not be listed count as gone",
        (
            py(
                "worker/reconcile",
                "if backend in acting.silent or backend not in acting.backends:",
                "if False:",
            ),
        ),
        (f"{RECONCILE}::test_what_a_silent_backend_could_have_is_left_as_it_is",),
    ),
    Mutant(
        "journal-before-the-start",
        "a command is started before it is written down that it may have been",
        (
            py("worker/processes", "if not self._journal.accept(record) or cancelled:", "if cancelled:"),
            py(
                "worker/processes",
                "self._supervisor.watch(running)\n        if given",
                "self._journal.accept(record)\n        self._supervisor.watch(running)\n        if given",
            ),
        ),
        ("tests/worker/test_starts.py::test_nothing_is_started_that_is_not_written_down",),
    ),
    Mutant(
        "lost-is-never-run-again",
        "a command that may have run is run again by a retry",
        (
            py(
                "worker/recovery",
                'supervisor.lose(record, "Station was restarted, and',
                'supervisor.drop(record, supervisor.spool(live.uid, record.id, loaded=True)) if True else print("',
            ),
        ),
        (
            "tests/worker/test_recovery.py::test_what_may_have_run_and_the_guest_does_not_know_is_lost_and_never_run_again",
        ),
    ),
    Mutant(
        "gone-callers",
        "what was to end with its callers goes on when they are gone",
        (py("worker/supervise", "if running.record.end_when_left:", "if False:"),),
        ("tests/worker/test_callers.py::test_a_command_that_was_left_ends_with_its_whole_tree",),
        by=("TimeoutError", "Timeout"),
    ),
    Mutant(
        "cancelled-ahead",
        "a command that was cancelled before it came runs all the same",
        (py("worker/callers", "return key[1] in self._noted.get(key[0], ())", "return False"),),
        ("tests/worker/test_callers.py::test_a_cancel_that_overtakes_its_command_keeps_it_from_starting",),
        by=("TimeoutError", "Timeout"),
    ),
    Mutant(
        "processes-of-a-sandbox",
        "a sandbox runs any number of commands at once",
        (
            py(
                "worker/processes",
                "if not cancelled and len(self._supervisor.running[live.uid]) >= self._max_running:",
                "if False:",
            ),
        ),
        ("tests/worker/test_processes.py::test_a_seventeenth_at_once_is_refused_and_room_comes_back",),
        by=("TimeoutError", "Timeout"),
    ),
    Mutant(
        "secrets-in-argv",
        "the variables of a command stand in its arguments, which every user of the machine may read",
        (py("worker/commands", "argv=argv,", 'argv=(*argv, *(f"{k}={v}" for k, v in request.env.items())),'),),
        ("tests/worker/test_starts.py::test_no_value_of_a_variable_stands_in_an_argument_list",),
    ),
)

HOSTS: tuple[Mutant, ...] = (*_CALLERS, *_FILES, *_LIVES)
