"""Defences between those who share a station: whose a token is, what he may do, and what is his."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

OWNERS = "tests/server/test_ownership.py"
VISITS = "tests/server/test_visits.py"
TOKENS = "tests/server/test_tokens.py"
IDENTITY = "tests/core/test_identity.py"
ALGORITHM = f"{TOKENS}::test_hd_a01_no_token_chooses_its_algorithm_or_its_key"
EVERYWHERE = f"{OWNERS}::test_hd_a10_anothers_sandbox_is_as_one_that_never_was_on_every_path"


def py(name: str, text: str, instead: str) -> Edit:
    return Edit(f"src/station/{name}.py", text, instead)


ACCESS: tuple[Mutant, ...] = (
    Mutant(
        "owner-of-a-sandbox",
        "a deployment reaches the sandboxes of another",
        (py("control/tool_ids", "if self._owners.get(uid) != owner:", "if uid not in self._owners:"),),
        (EVERYWHERE, f"{OWNERS}::test_hd_a11_nothing_is_stored_with_anothers_sandbox"),
    ),
    Mutant(
        "owner-of-a-uid",
        "a deployment reaches any sandbox whose uid it knows, as the operator does",
        (py("server/station", "if is_uid(sid) and not principal.is_deployment:", "if is_uid(sid):"),),
        (EVERYWHERE,),
    ),
    Mutant(
        "owner-of-a-list",
        "a deployment lists the sandboxes of all",
        (py("server/api/routes_sandboxes", "if everybodys and principal.is_deployment:", "if False:"),),
        (f"{OWNERS}::test_hd_a10_a_deployment_lists_its_own_and_only_the_operator_all",),
        by=("KeyError",),
    ),
    Mutant(
        "owner-of-files",
        "all deployments share the keys of the file store",
        (py("server/api/routes_store", "return caller(request).owner", "return Owner()"),),
        (
            f"{OWNERS}::test_hd_a11_a_key_of_another_is_as_one_that_never_was",
            f"{OWNERS}::test_hd_a11_an_upload_of_another_is_as_one_that_never_was",
        ),
        by=("KeyError",),
    ),
    Mutant(
        "owner-of-a-run",
        "a deployment joins the run of another by its id",
        (
            py(
                "server/api/routes_sandboxes",
                "station.runs.run(wanted, principal.owner.deployment)",
                "station.runs.run(wanted)",
            ),
        ),
        (f"{OWNERS}::test_a_run_of_one_id_is_each_deployments_own",),
        by=("KeyError",),
    ),
    Mutant(
        "folders-of-the-machine",
        "a deployment mounts a folder of the station's machine",
        (py("server/api/routes_sandboxes", "if wanted.mount is not None and principal.is_deployment:", "if False:"),),
        (f"{OWNERS}::test_hd_a12_options_that_would_open_the_machine_are_refused",),
    ),
    Mutant(
        "what-is-the-operators",
        "a deployment stops the station, makes keys and deletes other deployments",
        (py("server/access/guard", "    check_may(principal, action_at(path))\n    if", "    if"),),
        (f"{OWNERS}::test_a_deployment_reaches_its_own_things_and_nothing_of_the_operator",),
        by=("JSONDecodeError", "KeyError"),
    ),
    Mutant(
        "acting-on-the-socket-alone",
        "a deployment acts for another by a header",
        (py("server/access/guard", "if _values(headers, _ACTS_FOR):", "if False:"),),
        (f"{OWNERS}::test_who_is_on_the_socket_may_act_for_a_deployment_and_nobody_on_tcp",),
    ),
    Mutant(
        "bound-of-a-deployment",
        "a deployment takes all the room of a station with sandboxes",
        (py("control/admission", "(taken := self._taken(owner)) >= most", "(taken := self._taken(owner)) < 0"),),
        (f"{OWNERS}::test_sandboxes_of_a_deployment_are_bounded_and_of_nobody_else",),
    ),
    Mutant(
        "end-of-a-deployment",
        "what is opened while a deployment is deleted outlives it",
        (py("server/access/deployments", "return 0 if deployment is None or deployment.going else", "return"),),
        (f"{OWNERS}::test_what_is_claimed_while_a_deployment_goes_does_not_outlive_it",),
    ),
    Mutant(
        "token-at-the-end",
        "a key that is revoked while a body is on its way makes the next key",
        (py("server/access/visits", "                self._still()\n", ""),),
        (
            f"{VISITS}::test_a_key_that_is_revoked_within_a_body_makes_no_other",
            f"{VISITS}::test_a_token_of_an_old_generation_stores_nothing_that_it_had_begun",
        ),
    ),
    Mutant(
        "runs-of-a-deployment",
        "a run without an id goes on when its deployment is deleted",
        (py("worker/runs", "if run.key[0] == deployment and not", "if run.request.id and not"),),
        (f"{VISITS}::test_runs_end_with_their_deployment",),
    ),
    Mutant(
        "work-of-a-deployment",
        "what is just being made for a deployment outlives it",
        (py("server/api/routes_access", "    await station.access.visits.end(owner.deployment)\n", ""),),
        (f"{VISITS}::test_what_is_just_being_made_for_a_deployment_does_not_outlive_it",),
    ),
    Mutant(
        "requests-of-one",
        "one deployment takes every connection of the listener",
        (py("server/access/visits", "guest.over_tcp >= self.most", "guest.over_tcp < 0"),),
        (f"{VISITS}::test_requests_of_one_deployment_are_bounded_and_of_nobody_else",),
    ),
    Mutant(
        "bodies-that-stand-still",
        "a body that never ends keeps its connection and its room",
        (py("server/access/visits", "if self._over_tcp and not self._whole else None", "if False else None"),),
        (f"{VISITS}::test_a_body_that_stands_still_has_an_end_and_what_works_has_none",),
    ),
    Mutant(
        "bodies-of-one",
        "the bodies of one deployment keep out those of all others",
        (py("server/net/bodies", " or of_it + size > most", ""),),
        ("tests/server/test_http_bounds.py::test_bodies_of_one_deployment_have_half_and_leave_the_rest",),
    ),
    Mutant(
        "runs-of-one",
        "the runs of one deployment stand before those of all others",
        (py("worker/fair", "if deployment == Owner.deployment:", "if True:"),),
        ("tests/worker/test_fair.py::test_one_deployment_has_half_of_the_room_and_the_operator_all_of_it",),
    ),
    Mutant(
        "results-of-one",
        "the runs of one deployment make those of another forgotten, so that a retry runs them twice",
        (
            py("worker/runs", "newer[key[0]] += 1", 'newer[""] += 1'),
            py("worker/runs", "newer[key[0]] > KEPT_RESULTS", 'newer[""] > KEPT_RESULTS'),
        ),
        ("tests/worker/test_runs.py::test_results_of_one_deployment_make_nobody_elses_forgotten",),
    ),
    Mutant(
        "rate-of-opens",
        "a deployment opens sandboxes as fast as it can",
        (py("server/access/limits", "if bucket.left < 1:", "if False:"),),
        (
            f"{OWNERS}::test_opens_are_bounded_in_time_for_each_token_and_free_on_the_socket",
            f"{OWNERS}::test_requests_are_bounded_where_the_operator_says_so",
        ),
    ),
    Mutant(
        "secret-of-a-key",
        "an API key is let in by its id alone",
        (
            py(
                "server/access/keys",
                "fits = hmac.compare_digest(shown, key.sha256 if key else _NOBODYS)",
                "fits = True",
            ),
        ),
        (f"{TOKENS}::test_a_key_that_differs_in_anything_is_nobodys",),
    ),
    Mutant(
        "end-of-a-key",
        "an API key is good for ever",
        (py("server/access/keys", " or (key.expires_at is not None and now >= key.expires_at)", ""),),
        (f"{TOKENS}::test_a_key_ends_with_its_time_and_at_once_when_it_is_revoked",),
    ),
    Mutant(
        "signature-of-a-token",
        "an identity token is whatever its bearer writes",
        (
            py(
                "server/access/tokens",
                "jwt.PyJWS().decode(token, key.verifies, algorithms=[key.alg])",
                'jwt.PyJWS().decode(token, options={"verify_signature": False})',
            ),
        ),
        (ALGORITHM, f"{TOKENS}::test_a_signature_belongs_to_what_is_signed"),
    ),
    Mutant(
        "header-of-a-token",
        "an identity token says where its key is to be had",
        (py("core/identity", "set(header) != _HEADER", "not set(header) >= _HEADER"),),
        (ALGORITHM, f"{IDENTITY}::test_hd_a01_a_header_that_says_less_more_or_something_else_is_refused"),
        by=("Failed",),
    ),
    Mutant(
        "issuer-of-a-token",
        "an identity token of one station holds at another",
        (py("core/identity", 'claims.get("iss") != issuer', "False"),),
        (f"{IDENTITY}::test_hd_a03_another_issuer_audience_or_form_is_refused",),
    ),
    Mutant(
        "end-of-a-token",
        "an identity token is good for ever",
        (py("core/identity", " or now > ends + LEEWAY_SECONDS", ""),),
        (
            f"{IDENTITY}::test_hd_a02_times_hold_within_a_minute_and_only_as_numbers",
            f"{TOKENS}::test_hd_a02_a_token_ends_with_its_time_and_not_a_minute_later",
        ),
    ),
    Mutant(
        "generation-of-a-token",
        "rotation takes no token away",
        (py("server/access/deployments", " or claims.generation < deployment.generation", ""),),
        (f"{TOKENS}::test_rotated_tokens_and_those_of_a_deleted_deployment_end_at_once",),
    ),
    Mutant(
        "serves-others",
        "a station that was never meant for others serves them",
        (py("server/access/deployments", "if not self._serves_others:", "if False:"),),
        (f"{TOKENS}::test_a_station_that_serves_nobody_else_refuses_a_deployment_and_names_the_setting",),
        by=("Failed",),
    ),
)
