"""Defences of the guest: what code in a box cannot do because the program that started it does not let it."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

CONTAINMENT = "tests/guest_c/test_containment.py"
PROCESSES = "tests/guest_c/test_processes.py"
SECCOMP = "tests/guest_c/test_seccomp.py"
APPLETS = "tests/guest_c/test_applets.py"
WALK = "tests/guest_c/test_walk.py"
PACKS = "tests/guest_c/test_packs.py"
STREAMS = "tests/guest_c/test_streams.py"
BOXES = "tests/backends/test_boxes.py"


def c(name: str, text: str, instead: str) -> Edit:
    return Edit(f"guest/src/{name}.c", text, instead)


GUEST: tuple[Mutant, ...] = (
    # ── a command ends with all that it started ─────────────────────────────────────────────────────────────────────
    Mutant(
        "reaping-subreaper",
        "without a PID namespace the descendants of a command outlive it",
        (c("supervise_subreaper", "return tree_end(NULL);", "return 0;"),),
        (
            f"{CONTAINMENT}::test_a_daemon_of_its_own_session_and_name_ends_with_its_command[subreaper]",
            f"{CONTAINMENT}::test_comets_that_fork_and_exit_for_ever_are_swept[subreaper]",
        ),
    ),
    Mutant(
        "reaping-pidns",
        "in a PID namespace what a command left is neither ended by its supervisor nor counted",
        (c("supervise_pidns", "if (pid < 0)\n        return 0;", "if (pid <= 0)\n        return 0;"),),
        (f"{CONTAINMENT}::test_a_daemon_of_its_own_session_and_name_ends_with_its_command[pidns]",),
    ),
    Mutant(
        "pid-namespace",
        "commands of one box share a PID namespace: one sees, signals and outlives another",
        (c("spawn", "flags |= CLONE_NEWPID | CLONE_NEWNS;", "flags |= CLONE_NEWNS;"),),
        (
            f"{CONTAINMENT}::test_one_command_does_not_see_another_or_the_guest",
            f"{CONTAINMENT}::test_signals_to_everybody_harm_only_their_own_command[9]",
        ),
        by=("ConnectionError", "TimeoutError", "IndexError"),
    ),
    Mutant(
        "subreaper",
        "orphans of a command go to the machine's init, where nobody looks for them",
        (
            c(
                "supervise_subreaper",
                "prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 && guest.capabilities & CAN_SUBREAPER",
                "0",
            ),
        ),
        (f"{CONTAINMENT}::test_a_daemon_of_its_own_session_and_name_ends_with_its_command[subreaper]",),
    ),
    Mutant(
        "stop-before-kill",
        "a tree is killed process by process while it forks, not stopped first",
        (c("tree", "if (state != 'T' && state != 't') {", "if (0) {"),),
        (f"{CONTAINMENT}::test_a_fork_bomb_under_a_limit_is_swept_by_its_timeout[subreaper]",),
    ),
    Mutant(
        "key-rings",
        "code sees by name the key rings of the user that its box is on the machine",
        (c("supervise_pidns", "if (!error && guest.cover_keys)", "if (0)"),),
        ("tests/backends/test_boxes.py::test_a_command_sees_its_own_processes_and_no_key_of_the_user_outside",),
    ),
    Mutant(
        "orphans-of-a-supervisor",
        "who kills the supervisor of a command keeps what the command started",
        (c("process", "gone = tree_end_by(is_ours, now_us() + ORPHANS_US, &ended);", "gone = true;\n    ended = 0;"),),
        (f"{CONTAINMENT}::test_killing_the_supervisor_is_typed_and_the_tree_ends",),
    ),
    Mutant(
        "stopped-supervisor",
        "user code that stops its own supervisor holds its tree for ever",
        (
            c(
                "process",
                "if (!process->applet)\n                kill(pid, SIGKILL);",
                "if (0)\n                kill(pid, SIGKILL);",
            ),
        ),
        (f"{CONTAINMENT}::test_killing_the_supervisor_is_typed_and_the_tree_ends",),
        by=("TimeoutError",),
    ),
    Mutant(
        "end-with-the-guest",
        "a guest that is told to end leaves its trees to the machine",
        (c("process", "tree_end(NULL);", ";"),),
        (f"{CONTAINMENT}::test_the_guest_ends_politely_with_everything_it_started",),
    ),
    Mutant(
        "guest-timeout",
        "the guest lets a command run on after its time",
        (
            c("process", "if (p->timeout_at <= now)", "if (0)"),
            c("process", "next = p->timeout_at < next ? p->timeout_at : next;", ";"),
        ),
        (
            f"{PROCESSES}::test_a_program_that_ignores_term_dies_after_the_grace[pidns]",
            f"{PROCESSES}::test_a_timed_out_program_may_end_politely[pidns]",
        ),
        by=("TimeoutError",),
    ),
    Mutant(
        "kill-after-the-grace",
        "a command that ignores TERM is never killed",
        (
            c("process", "if (p->kill_at <= now)", "if (0)"),
            c("process", "next = p->kill_at < next ? p->kill_at : next;", ";"),
        ),
        (f"{PROCESSES}::test_a_program_that_ignores_term_dies_after_the_grace[pidns]",),
        by=("TimeoutError",),
    ),
    Mutant(
        "an-id-starts-once",
        "a start that is sent twice runs twice",
        (c("dispatch", "if (frame->id == 0 || frame->id <= last_id)", "if (frame->id == 0)"),),
        (f"{PROCESSES}::test_a_repeated_id_is_refused_and_nothing_runs[pidns]",),
        by=("TimeoutError",),
    ),
    # ── what it may ask of the kernel ───────────────────────────────────────────────────────────────────────────────
    Mutant(
        "seccomp",
        "no filter is put around user code",
        (c("lockdown", "error = seccomp_install();", "error = 0;"),),
        (f"{SECCOMP}::test_dangerous_calls_are_refused", f"{SECCOMP}::test_other_call_tables_do_not_exist"),
        by=("ValueError",),
    ),
    *(
        Mutant(
            f"seccomp-{name}",
            f"user code may call {name}",
            tuple(c("seccomp", rule, "") for rule in rules),
            (f"{SECCOMP}::test_dangerous_calls_are_refused",),
        )
        for name, rules in {
            "io_uring": ("    {SYS_io_uring_setup, DENY, 0},\n",),
            "keyctl": (
                "    {SYS_keyctl, DENY, 0},\n",
                "    {SYS_add_key, DENY, 0},\n",
                "    {SYS_request_key, DENY, 0},\n",
            ),
            "prlimit": ("    {SYS_prlimit64, SELF_ONLY, 0},\n",),
            "unshare": ("    {SYS_unshare, DENY, 0},\n", "    {SYS_clone, NO_FLAGS, NEW_NAMESPACE_FLAGS},\n"),
            "process_vm_readv": ("    {SYS_process_vm_readv, DENY, 0},\n",),
            "personality": ("    {SYS_personality, PERSONALITY, 0},\n",),
            "TIOCSTI": ("    {SYS_ioctl, TERMINAL_REQUEST, 0},\n",),
        }.items()
    ),
    Mutant(
        "mounts",
        "user code mounts (the filter lets it, and the capability is left: each alone refuses it)",
        (
            c("seccomp", "    {SYS_mount, DENY, 0},\n", ""),
            c("lockdown", "int error = set_capabilities(0);", "int error = 0;"),
        ),
        (f"{SECCOMP}::test_dangerous_calls_are_refused",),
    ),
    Mutant(
        "socket-families",
        "a socket may be of any family: AF_VSOCK, AF_ALG, AF_PACKET",
        (
            c(
                "seccomp",
                "allow_only((const uint32_t[]){1 /* AF_UNIX */, 2 /* AF_INET */, 10 /* AF_INET6 */}, 3);",
                "answer(ALLOWED);",
            ),
        ),
        (f"{SECCOMP}::test_dangerous_calls_are_refused",),
    ),
    Mutant(
        "clone3",
        "clone3, whose flags no filter can see, exists",
        (c("seccomp", "    {SYS_clone3, ABSENT, 0},\n", ""),),
        (f"{SECCOMP}::test_other_call_tables_do_not_exist",),
        by=("ValueError",),
    ),
    Mutant(
        "other-architecture",
        "the 32-bit door of the kernel is open",
        (
            c(
                "seccomp",
                "skip_if_equal(OWN_ARCH, 1);\n    answer(MISSING);",
                "skip_if_equal(OWN_ARCH, 1);\n    answer(ALLOWED);",
            ),
        ),
        (f"{SECCOMP}::test_a_32_bit_call_reaches_nothing",),
    ),
    # ── what it has and is ──────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "capability-drop",
        "user code keeps the capabilities that the guest has",
        (c("lockdown", "int error = set_capabilities(0);", "int error = 0;"),),
        (f"{PROCESSES}::test_user_code_has_a_clean_slate[pidns]",),
    ),
    Mutant(
        "bounding-set",
        "user code could regain capabilities from a file",
        (c("lockdown", "if (prctl(PR_CAPBSET_DROP, bounding[i], 0, 0, 0) < 0)", "if (true)"),),
        (f"{BOXES}::test_code_is_user_1000_without_any_capability",),
    ),
    Mutant(
        "user-of-the-code",
        "user code runs as the guest's own user, who is root of the box",
        (c("lockdown", "if (guest.change_user &&", "if (false &&"),),
        (f"{CONTAINMENT}::test_a_guest_of_another_user_cannot_be_touched[pidns]",),
        by=("ConnectionError", "TimeoutError"),
    ),
    Mutant(
        "no-new-privileges",
        "setuid files work (the filter goes too: the kernel refuses one without this)",
        (
            c("lockdown", "if (!error && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)", "if (false)"),
            c("lockdown", "error = seccomp_install();", "error = 0;"),
        ),
        (f"{PROCESSES}::test_user_code_has_a_clean_slate[subreaper]",),
    ),
    Mutant(
        "core-limit",
        "a crash writes the memory of a program, and its secrets, to disk",
        (c("lockdown", "setrlimit(RLIMIT_CORE, &none);", "(void)none;"),),
        (f"{PROCESSES}::test_user_code_has_a_clean_slate[subreaper]",),
    ),
    Mutant(
        "non-dumpable-guest",
        "user code reads and changes its supervisor by /proc",
        (
            c(
                "lockdown",
                "prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);\n    seccomp_prepare();",
                "seccomp_prepare();",
            ),
        ),
        (f"{CONTAINMENT}::test_the_supervisor_cannot_be_read_or_changed",),
    ),
    Mutant(
        "applet-as-user",
        "file operations keep the guest's own rights",
        (c("applet", "int error = lockdown_applet();", "int error = 0;"),),
        ("tests/guest_c/test_rights.py::test_a_file_operation_has_no_rights_of_the_guest",),
    ),
    Mutant(
        "own-session",
        "user code is in the session of its supervisor",
        (c("start_main", "    setsid();\n", ""),),
        (f"{PROCESSES}::test_user_code_has_a_clean_slate[subreaper]",),
    ),
    Mutant(
        "descriptors-of-the-guest",
        "user code inherits the pipes of the guest (neither the one flag nor the other closing is left)",
        (
            c("spawn", "if (pipe2(ends, O_CLOEXEC) < 0)", "if (pipe2(ends, 0) < 0)"),
            c("supervise", "    control = fds_keep_only(control);\n", ""),
        ),
        (f"{PROCESSES}::test_user_code_has_a_clean_slate[subreaper]",),
    ),
    Mutant(
        "descriptors-of-the-station",
        "user code inherits what the guest was given when it was started",
        (c("main", "    fds_inherit_none();\n", ""),),
        (f"{BOXES}::test_code_has_no_descriptor_but_its_own_three",),
    ),
    Mutant(
        "proc-of-the-box",
        "a command sees the processes of its box in /proc, and may write settings of the kernel there",
        (c("supervise_pidns", "int error = guest.fresh_proc ? pidns_mount_proc() : 0;", "int error = 0;"),),
        (f"{CONTAINMENT}::test_one_command_does_not_see_another_or_the_guest",),
    ),
    # ── its files ───────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "beneath-openat2",
        "links lead file operations out of the workspace",
        (c("path", "RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);", "0);"),),
        (
            f"{APPLETS}::test_links_are_followed_beneath_the_root_and_never_out_of_it[subreaper]",
            f"{APPLETS}::test_a_directory_that_is_swapped_with_a_link_never_leads_out[subreaper]",
        ),
    ),
    Mutant(
        "beneath-walk",
        "on a kernel without openat2 a directory that becomes a link meanwhile is followed",
        (c("path", "name, wanted | O_NOFOLLOW | O_CLOEXEC)", "name, wanted | O_CLOEXEC)"),),
        (f"{WALK}::test_a_directory_that_is_swapped_with_a_link_never_leads_out",),
    ),
    Mutant(
        "walk-absolute-links",
        "on a kernel without openat2 an absolute link is followed from the root of the workspace",
        (c("path_walk", "if (way[0] == '/')", "if (false)"),),
        (f"{WALK}::test_links_lead_nowhere_else",),
    ),
    Mutant(
        "walk-up",
        "on a kernel without openat2 a link climbs out of the workspace",
        (
            c(
                "path_walk",
                "if (walker->depth == 0)\n            return fail(EXDEV);\n        climb(walker);",
                "if (walker->depth > 0)\n            climb(walker);\n"
                '        else\n            walker->stack[0] = openat(here, "..", O_PATH | O_DIRECTORY);',
            ),
        ),
        (f"{WALK}::test_links_are_followed_beneath_the_root_and_never_out_of_it",),
    ),
    Mutant(
        "dot-dot",
        "a path may climb out by its own names (the kernel's check is another layer: it goes too)",
        (
            c("path", "if (part == 2 && path[0] == '.' && path[1] == '.')\n            return false;", ""),
            c("path", "RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);", "0);"),
        ),
        (f"{APPLETS}::test_paths_that_could_leave_are_refused[read-../x]",),
    ),
    Mutant(
        "links-in-a-tree",
        "a member of an archive is written through a link that came before it",
        (
            c("path", "directory, name, flags | O_NOFOLLOW,\n", "directory, name, flags,\n"),
            c(
                "path",
                "RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV);",
                "0);",
            ),
        ),
        (f"{PACKS}::test_a_refused_archive_changes_nothing",),
    ),
    Mutant(
        "links-out-of-a-pack",
        "an archive brings links that lead out of it",
        (c("applet_unpack", "if (!link_is_let_in(path, target))", "if (false)"),),
        (f"{PACKS}::test_a_refused_archive_changes_nothing",),
    ),
    Mutant(
        "special-members-of-a-pack",
        "a member that is neither file, directory nor link is passed over in silence",
        (c("applet_unpack", '    else\n        refuse("neither directory, file nor link");', ""),),
        (f"{PACKS}::test_a_refused_archive_changes_nothing",),
    ),
    Mutant(
        "only-regular-files",
        "a fifo or a device is read as a file",
        (c("applet_read", "if (!S_ISREG(status.st_mode))", "if (false)"),),
        (f"{APPLETS}::test_only_regular_files_are_read_or_replaced[subreaper]",),
    ),
    Mutant(
        "temporary-and-rename",
        "a write goes into the file itself: who cuts it off leaves half of it",
        (
            c(
                "applet_write",
                'openat(place.directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);',
                "openat(place.directory, place.name, O_CREAT | O_TRUNC | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);",
            ),
            c("applet_write", "    if (!draft.name[0]) {\n", "    if (!draft.name[0]) {\n        return true;\n"),
        ),
        (
            f"{APPLETS}::test_a_write_that_is_cut_off_leaves_the_old_content[subreaper]",
            f"{APPLETS}::test_a_wrong_digest_leaves_the_old_content[subreaper-x]",
        ),
    ),
    Mutant(
        "digest-of-a-write",
        "a write whose bytes were damaged on the way takes the place of the old file",
        (c("applet_write", "|| memcmp(digest, buffer, SHA256_SIZE) != 0)", ")"),),
        (f"{APPLETS}::test_a_wrong_digest_leaves_the_old_content",),
    ),
    Mutant(
        "special-mode-bits",
        "an upload can be a setuid program",
        (c("applet_io", "(mode_t)(mode & 0777)", "(mode_t)mode"),),
        (f"{APPLETS}::test_special_mode_bits_are_stripped[subreaper]",),
    ),
    Mutant(
        "special-mode-bits-of-a-pack",
        "an archive can bring a setuid program",
        (c("entry", "(mode_t)(mode & 0777)", "(mode_t)mode"),),
        (f"{PACKS}::test_modes_of_members_are_plain[subreaper]",),
    ),
    # ── the stream ──────────────────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "output-limit",
        "a command writes more than its output limit",
        (
            c(
                "output",
                "bool over = process->output_limit && total(process) >= process->output_limit;",
                "bool over = false;",
            ),
            c("output", "if (process->output_limit && room >", "if (false && room >"),
        ),
        (f"{STREAMS}::test_the_output_limit_cuts_exactly_and_ends_the_process[subreaper-1000]",),
        by=("TimeoutError",),
    ),
    Mutant(
        "credit",
        "the guest sends more than the host has room for",
        (
            c("output", "|| session_credit() <= 12)", ")"),
            c("output", "if (count > session_credit() - 12)", "if (false)"),
        ),
        (f"{STREAMS}::test_nothing_is_sent_beyond_the_credit[subreaper]",),
    ),
    Mutant(
        "window-of-stdin",
        "the host can fill the guest's memory with input that nobody reads",
        (c("input", "if (input->at_end || length > STDIN_WINDOW - waiting)", "if (input->at_end)"),),
        (f"{STREAMS}::test_more_stdin_than_the_window_is_refused[subreaper]",),
        by=("ConnectionError", "TimeoutError"),
    ),
    Mutant(
        "nonce-of-frames",
        "a frame is obeyed whoever sealed it: what a user uploaded can be one",
        (
            c(
                "frame",
                "return parser->greeted && memcmp(trailer, parser->trailer, FRAME_TRAILER) == 0;",
                "return parser->greeted;",
            ),
        ),
        (f"{STREAMS}::test_half_frames_and_garbage_are_dropped_and_never_executed[subreaper]",),
    ),
)
