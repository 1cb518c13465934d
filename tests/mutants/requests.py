"""Defences between a request and what it does: how often, how it is told of, and to whom."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

ONCE = "tests/server/test_idempotency.py"
ANSWERS = "tests/store/test_answers.py"
FILES = "tests/store/test_files.py"
UPLOADS = "tests/store/test_uploads.py"
LOGS = "tests/server/test_logs.py"
PROBES = "tests/server/test_probes.py"
OPENAPI = "tests/server/test_openapi.py"
_EXEC = "    live = await live_box(station, request)\n    await station.admit(live)\n    return"


def py(name: str, text: str, instead: str) -> Edit:
    return Edit(f"src/station/{name}.py", text, instead)


REQUESTS: tuple[Mutant, ...] = (
    Mutant(
        "key-of-another-request",
        "a request gets the answer of another one that came under its Idempotency-Key",
        (py("server/api/idempotency", "if kept is not None and kept.request != wanted:", "if False:"),),
        (f"{ONCE}::test_a_key_of_another_request_is_refused",),
    ),
    Mutant(
        "key-of-another-caller",
        "callers get the answers of others under keys that they guess",
        (py("server/api/idempotency", "owner.account.encode(), owner.deployment.encode(), key", "key"),),
        (f"{ONCE}::test_a_key_is_a_callers_own",),
    ),
    Mutant(
        "key-under-way",
        "a command runs twice, where a second request comes before the answer of the first",
        (
            py(
                "server/api/routes_processes",
                "wanted = named(await read_json(request, ExecRequest, LARGE_BODY), request)\n" + _EXEC,
                "wanted = await read_json(request, ExecRequest, LARGE_BODY)\n" + _EXEC,
            ),
        ),
        (f"{ONCE}::test_who_comes_while_the_first_is_under_way_waits_for_it",),
    ),
    Mutant(
        "key-of-a-secret",
        "an API key, told once, stands in the answers that are kept",
        (py("server/api/idempotency", "if again is Again.ANSWER else None", "if True else None"),),
        (f"{ONCE}::test_a_secret_is_told_once_and_kept_nowhere",),
    ),
    Mutant(
        "answers-of-each-owner",
        "one deployment makes another's work happen twice: its answers push the other's out",
        (py("store/answers", 'given WHERE account = ? AND deployment = ? "', 'given WHERE length(?) + length(?) "'),),
        (f"{ANSWERS}::test_nobody_takes_the_place_of_anothers_answer",),
    ),
    Mutant(
        "done-is-told",
        "what was done is told as failed, and done again, where its answer cannot be kept",
        (py("server/api/idempotency", "await keeping\n    except StationError", "await keeping\n    except KeyError"),),
        (f"{ONCE}::test_what_was_done_is_answered_as_it_was_also_where_its_answer_cannot_be_kept",),
    ),
    Mutant(
        "room-of-each-owner",
        "a deployment learns whether another has a content: storing it takes no room then",
        (
            py(
                "store/catalog",
                "WHERE checksum = ? AND account = ? AND deployment = ? LIMIT 1",
                "WHERE checksum = ? AND length(?) AND length(?) LIMIT 1",
            ),
        ),
        (f"{FILES}::test_equal_contents_of_an_owner_take_their_room_once_and_stay_until_the_last_key_goes[directory]",),
    ),
    Mutant(
        "announced-share",
        "uploads that a deployment has announced fill the store, and no byte has come",
        (py("store/uploads", "if announced + size > self._most_each:", "if False:"),),
        (f"{UPLOADS}::test_what_a_deployment_has_announced_leaves_room_for_others",),
    ),
    Mutant(
        "log-json",
        "what a sandbox made up forges a line of a log in JSON",
        (py("server/logs", "json.dumps(told)", "str(told)"),),
        (f"{LOGS}::test_hd_w05_control_characters_forge_no_line_of_json",),
        by=("JSONDecodeError",),
    ),
    Mutant(
        "log-text",
        "what a sandbox made up forges a line of a log",
        (py("server/logs", "lines = [escape(text)]", "lines = [text]"),),
        (f"{LOGS}::test_hd_w05_control_characters_forge_no_line_of_text",),
    ),
    Mutant(
        "readiness-detail",
        "those without a token are told what is wrong inside",
        (
            py(
                "server/api/routes_station",
                "reason if may(caller(request), Action.OPERATE) else",
                "reason if True else",
            ),
        ),
        (f"{PROBES}::test_the_operator_alone_is_told_why_and_what_is_counted",),
    ),
    Mutant(
        "readiness-often",
        "those without a token make the station write to its disk as often as they ask",
        (py("server/readiness", "if self._clock() >= self._until:", "if True:"),),
        (f"{PROBES}::test_it_is_looked_at_once_a_second_however_often_it_is_asked",),
    ),
    Mutant(
        "metrics-labels",
        "whoever asks with made-up methods fills the memory of the station and of who collects its metrics",
        (
            py(
                "server/api/app",
                'scope["method"] if scope["method"] in self._operations else "OTHER"',
                'scope["method"]',
            ),
        ),
        (f"{PROBES}::test_requests_are_counted_by_their_route_and_never_by_what_stands_in_it",),
        by=("KeyError",),
    ),
    Mutant(
        "form-as-json",
        "a form in parts, which a page can send, is read as something else",
        (
            py(
                "server/requests",
                'if request.headers.get("content-type", "").lstrip().lower().startswith("multipart/"):',
                "if False:",
            ),
        ),
        (f"{OPENAPI}::test_json_is_read_whatever_it_is_called_except_as_a_form_in_parts",),
    ),
)
