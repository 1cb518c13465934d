"""Defences of the stores in NATS: what is written once, found again, and never believed to be gone."""

from __future__ import annotations

from tests.mutants.hosts import py
from tests.mutants.mutant import Mutant

CHILD = "tests/store/test_nats_child.py"
CONNECTION = "tests/store/test_nats_connection.py"
DAMAGE = "tests/store/test_nats_damage.py"
FILES = "tests/store/test_nats_files.py"

STORES = (
    Mutant(
        "nats-syncs-first",
        "what the station's own nats-server acknowledged is lost with the power",
        (py("server/nats_child", "  sync_interval: always\n", ""),),
        (
            "tests/store/test_power_loss.py::test_hd_d06_our_nats_server_syncs_every_record_and_every_file_before_it_acknowledges",
        ),
    ),
    Mutant(
        "nats-dies-with-its-station",
        "a nats-server outlives a station that was killed",
        (py("server/nats_child", "preexec_fn=_end_with_parent,", ""),),
        (f"{CHILD}::test_it_ends_with_its_station_also_when_that_is_killed",),
        by=("TimeoutError",),
    ),
    Mutant(
        "nats-is-ours",
        "whoever takes the port of a nats-server that is away gets what the station writes",
        (py("store/nats/connection", "access.place is None", "True"),),
        (f"{CHILD}::test_whoever_takes_the_port_of_one_that_is_away_is_told_nothing",),
        by=("Unavailable",),
    ),
    Mutant(
        "nats-is-still-ours",
        "a nats-server that ends while it is connected to is believed to be whoever has its port",
        (py("store/nats/connection", "if self._where() != access:", "if False:"),),
        (f"{CHILD}::test_a_server_that_ends_while_it_is_connected_to_is_not_believed",),
        by=("Unavailable", "TimeoutError"),
    ),
    Mutant(
        "nats-floor",
        "a server that loses what it acknowledged is used",
        (py("store/nats/connection", "_OLDEST = (2, 10, 23)", "_OLDEST = (0, 0, 0)"),),
        (f"{CONNECTION}::test_older_versions_are_too_old",),
    ),
    Mutant(
        "nats-compare-and-set",
        "of two writers in NATS both win",
        (py("store/nats/connection", "sent[_LAST] = str(last)", "pass"),),
        (f"{CONNECTION}::test_a_message_under_an_old_sequence_changes_nothing",),
    ),
    Mutant(
        "nats-finds-its-own",
        "a writer loses to itself when the answer to its first try was lost",
        (py("store/nats/connection", "found.headers.get(_ID) == sent[_ID]", "False"),),
        (f"{CONNECTION}::test_hd_d07_an_answer_that_was_lost_is_found_by_the_id_of_its_message",),
        by=("ChangedMeanwhile",),
    ),
    Mutant(
        "nats-counts-subjects",
        "a list of NATS that ends too early is believed",
        (py("store/nats/follow", 'and len(self._subjects) < state.get("num_subjects", 0)', "and False"),),
        (f"{CONNECTION}::test_an_end_that_comes_too_early_is_noticed_by_the_number_of_subjects[True]",),
    ),
    Mutant(
        "nats-is-remembered",
        "a record that nats-server dropped was never there, and its box goes",
        (py("store/nats/registry", "for uid in self._seen.below(_SEEN) - self._known.keys()", "for uid in ()"),),
        (f"{DAMAGE}::test_hd_d08_a_record_that_the_server_dropped_is_told_as_damaged",),
    ),
    Mutant(
        "nats-digest",
        "a damaged file of NATS is served as whole",
        (py("store/nats/content", "digest.hexdigest() != self.file.checksum", "False"),),
        (f"{FILES}::test_hd_d08_a_content_that_is_not_what_was_acknowledged_is_never_served_as_whole[flip]",),
    ),
    Mutant(
        "nats-sweep-spares-writers",
        "the sweep takes the bytes of an upload that is under way",
        (py("store/nats/files", "ours = self._coming | ", "ours = "),),
        (f"{FILES}::test_an_upload_under_way_is_no_orphan_however_long_it_takes",),
        by=("InternalError",),
    ),
    Mutant(
        "nats-sweep-spares-readers",
        "the sweep takes the bytes that somebody reads",
        (py("store/nats/files", " and not self._read[nuid]]", "]"),),
        (f"{FILES}::test_a_reader_has_the_file_to_its_end_though_it_is_deleted_and_swept",),
        by=("InternalError",),
    ),
)
