"""Defences of the two confining backends: the walls of a box, and who may touch which box."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

BOXES = "tests/backends/test_boxes.py"
ARGV = "tests/backends/test_argv.py"
LAUNCH = "tests/backends/test_launch.py"
SWAPPED = "tests/backends/test_swapped.py"
CONFIG = "tests/docker/test_config.py"
DOCKER = "tests/docker/test_boxes.py"
BODY = f"{CONFIG}::test_nothing_is_left_to_the_engines_defaults"


def argv(text: str, instead: str) -> Edit:
    return Edit("src/station/backends/bubblewrap/argv.py", text, instead)


def c(name: str, text: str, instead: str) -> Edit:
    return Edit(f"guest/src/{name}.c", text, instead)


def body(text: str, instead: str) -> Edit:
    return Edit("src/station/backends/docker/config.py", text, instead)


def backend(text: str, instead: str) -> Edit:
    return Edit("src/station/backends/docker/backend.py", text, instead)


_BUBBLEWRAP = (
    Mutant(
        "pids-bubblewrap",
        "a box makes eight times as many processes as it may (each layer: user, cgroup, command)",
        (
            argv("nproc = plan.pids + GUEST_SPARE_PIDS", "nproc = 8 * plan.pids + GUEST_SPARE_PIDS"),
            argv('"--nproc", str(plan.pids)', '"--nproc", str(8 * plan.pids)'),
            Edit(
                "src/station/backends/bubblewrap/backend.py",
                "effective.cpus, pids + GUEST_SPARE_PIDS)",
                "effective.cpus, 8 * pids + GUEST_SPARE_PIDS)",
            ),
        ),
        (f"{BOXES}::test_the_pids_limit_is_of_one_box_alone",),
    ),
    Mutant(
        "nproc-of-a-command",
        "the guest's own limit on the processes of a command is gone, where nothing else bounds them",
        (c("lockdown", "if (guest.nproc) {", "guest.nproc *= 2;\n    if (guest.nproc) {"),),
        ("tests/guest_c/test_processes.py::test_a_full_process_limit_is_told_and_passes[subreaper]",),
    ),
    Mutant(
        "memory-bubblewrap",
        "nothing bounds the memory of a box where a cgroup could",
        (Edit("src/station/backends/bubblewrap/backend.py", "CgroupLimits(memory, ", "CgroupLimits(None, "),),
        (f"{BOXES}::test_a_named_limit_holds_or_is_refused",),
    ),
    Mutant(
        "tmpfs-bubblewrap",
        "a memory file system grows to eight times its size",
        (argv('f"{name}={self.size_bytes}:', 'f"{name}={8 * self.size_bytes}:'),),
        (f"{BOXES}::test_sizes_hold_and_files_are_counted",),
    ),
    Mutant(
        "inodes-bubblewrap",
        "the number of files of a memory file system has no bound",
        (argv("{self.inodes}:", "0:"),),
        (f"{BOXES}::test_sizes_hold_and_files_are_counted",),
    ),
    Mutant(
        "network-bubblewrap",
        "a box shares the network of the machine",
        (argv('argv = ["--unshare-all"]', 'argv = ["--unshare-all", "--share-net"]'),),
        (
            f"{BOXES}::test_the_namespaces_are_the_box_s_own_and_no_user_namespace_may_be_made",
            "tests/attacks/test_network.py::test_hd_n02_no_address_of_this_machine_is_in_reach[bubblewrap]",
        ),
    ),
    Mutant(
        "read-only-root-bubblewrap",
        "the root of a box, a file system without a size, is writable",
        (argv('"--remount-ro", "/dev", "--remount-ro", "/", ', ""),),
        (
            f"{ARGV}::test_what_is_left_of_the_root_is_made_read_only_last",
            f"{BOXES}::test_nothing_is_writable_but_what_has_a_size",
        ),
        by=("ValueError",),
    ),
    Mutant(
        "user-namespaces-by-bwrap",
        "code may make user namespaces, with all capabilities within",
        (argv('argv += ["--disable-userns"] if _can_disable_userns(plan) else []', "pass"),),
        (f"{ARGV}::test_a_box_with_one_user_forbids_other_user_namespaces_by_bwrap",),
    ),
    Mutant(
        "user-namespaces-by-the-launcher",
        "what runs below the launcher may make user namespaces",
        (c("launch_userns", "if (plan->max_userns >= 0) {", "if (false) {"),),
        (f"{LAUNCH}::test_no_user_namespace_beyond_the_allowed_number",),
    ),
    Mutant(
        "new-session",
        "bwrap leaves the box in the session, and at the terminal, of the station",
        (argv('"--new-session", ', ""),),
        (f"{ARGV}::test_a_box_with_one_user_forbids_other_user_namespaces_by_bwrap",),
    ),
    Mutant(
        "launcher-session",
        "the launcher leaves the box at the terminal of whoever started the station",
        (c("launch", "    setsid(); /*", "    /*"),),
        ("tests/backends/test_environment.py::test_a_box_has_no_terminal_of_the_station",),
    ),
    Mutant(
        "masked-environment",
        "the variables of the station are in the box (both who starts the launcher and the launcher let them through)",
        (
            Edit(
                "src/station/backends/_spawn.py", "list(argv), {}, file_actions", "list(argv), os.environ, file_actions"
            ),
            c("launch", "char *const nothing[] = {NULL};", "char **nothing = environ;"),
        ),
        (
            f"{LAUNCH}::test_a_program_gets_no_variable_the_root_as_directory_and_its_limits",
            "tests/backends/test_environment.py::test_no_variable_of_the_station_is_in_what_makes_a_box",
        ),
    ),
    Mutant(
        "descriptors-of-the-launcher",
        "whatever descriptor the station leaves open reaches the box",
        (c("launch", "if (last < 0 || syscall(", "if (true || syscall("),),
        (f"{LAUNCH}::test_no_descriptor_above_the_last_passes",),
    ),
    Mutant(
        "spare-user",
        "as root, boxes run as root of the machine",
        (Edit("src/station/backends/bubblewrap/argv.py", "if users.become:", "if False:"),),
        (f"{ARGV}::test_only_root_becomes_somebody_else",),
    ),
    Mutant(
        "links-to-a-folder",
        "a link that code puts on the way to a mounted folder is followed by the launcher",
        (
            c(
                "launch_guard",
                "RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH",
                "0",
            ),
        ),
        (f"{LAUNCH}::test_a_link_on_the_way_to_a_folder_or_in_it_is_not_followed",),
    ),
    Mutant(
        "protected-names-of-a-folder",
        "code in a mounted folder writes hooks and settings that the user's own programs then run",
        (c("launch_guard", "MS_REMOUNT | MS_BIND | MS_RDONLY | ", "MS_REMOUNT | MS_BIND | "),),
        (f"{BOXES}::test_a_folder_of_the_user_is_the_workspace_and_its_hooks_are_safe",),
    ),
    Mutant(
        "process-of-a-box",
        "a box is taken over by a pid alone, which another process may have by now",
        (
            Edit(
                "src/station/backends/_box.py",
                'alive = data.get("boot") == boot_id() and handle_of(handle.pid) == handle',
                "alive = handle_of(handle.pid) is not None",
            ),
        ),
        ("tests/backends/test_adoption.py::test_a_process_that_has_the_number_of_a_box_by_chance_is_left_alone",),
    ),
    Mutant(
        "links-in-what-is-removed",
        "the station follows a link of the code's when it removes the files of a sandbox",
        (
            Edit(
                "src/station/backends/_trees.py",
                "os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW |",
                "os.O_RDONLY | os.O_DIRECTORY |",
            ),
        ),
        (f"{SWAPPED}::test_a_directory_that_becomes_a_link_meanwhile_is_not_emptied_elsewhere",),
    ),
    Mutant(
        "links-in-what-is-opened-by-force",
        "the station follows a link of the code's when it changes the mode of a closed directory",
        (
            Edit(
                "src/station/backends/_trees.py",
                "os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW",
                "os.O_PATH | os.O_DIRECTORY",
            ),
        ),
        (f"{SWAPPED}::test_a_closed_directory_that_becomes_a_link_meanwhile_opens_nothing_elsewhere",),
    ),
)

_DOCKER = (
    Mutant(
        "pids-docker",
        "a container makes eight times as many processes as it may",
        (body('"PidsLimit": pids_limit(plan),', '"PidsLimit": 8 * pids_limit(plan),'),),
        (BODY, f"{DOCKER}::test_limits_hold"),
        engine=True,
    ),
    Mutant(
        "memory-docker",
        "nothing bounds the memory of a container",
        (body("memory = (limits.memory_mb or 0) * _MIB", "memory = 0"),),
        (BODY, f"{DOCKER}::test_limits_hold"),
        engine=True,
    ),
    Mutant(
        "swap-docker",
        "what is over the memory limit is swapped out to the machine's disk",
        (body('"MemorySwap": memory,', '"MemorySwap": -1,'),),
        (BODY,),
    ),
    Mutant(
        "tmpfs-docker",
        "a memory file system has half of the machine's memory",
        (body('f"size={size},nr_inodes', 'f"nr_inodes'),),
        (f"{CONFIG}::test_every_tmpfs_has_a_size", f"{DOCKER}::test_limits_hold"),
        engine=True,
    ),
    Mutant(
        "volumes-of-an-image",
        "a volume that an image declares is on the engine's disk, without a bound",
        (body("for place in sorted(set(plan.image.volumes) - taken):", "for place in ():"),),
        (f"{CONFIG}::test_a_volume_of_the_image_is_bounded",),
        by=("ValueError",),
    ),
    Mutant(
        "log-docker",
        "what a container writes past the guest fills the engine's log",
        (body('"LogConfig": {"Type": "none", "Config": {}}', '"LogConfig": {"Type": "json-file", "Config": {}}'),),
        (BODY,),
    ),
    Mutant(
        "network-docker",
        "a container is in the engine's network",
        (body('"NetworkMode": plan.network,', '"NetworkMode": "host",'),),
        (BODY,),
    ),
    Mutant(
        "capabilities-docker",
        "the guest keeps the engine's fourteen capabilities",
        (body('"CapDrop": ["ALL"],', '"CapDrop": [],'),),
        (BODY, f"{DOCKER}::test_user_code_is_nobody_and_sees_nothing_of_the_guest"),
        engine=True,
    ),
    Mutant(
        "no-new-privileges-docker",
        "setuid programs of an image work for the guest's children",
        (body('"SecurityOpt": ["no-new-privileges", ', '"SecurityOpt": ['),),
        (BODY,),
    ),
    Mutant(
        "read-only-root-docker",
        "the root of a container, on the engine's disk, is writable",
        (body('"ReadonlyRootfs": True', '"ReadonlyRootfs": False'),),
        (BODY,),
    ),
    Mutant(
        "user-code-docker",
        "user code in a container runs as the guest's own user",
        (body('words += ["--uid", str(BOX_USER), "--gid", str(BOX_USER), "--own"', 'words += ["--own"'),),
        (f"{DOCKER}::test_user_code_is_nobody_and_sees_nothing_of_the_guest",),
        by=("BoxLost",),
        engine=True,
    ),
    Mutant(
        "ping-sockets-docker",
        "anybody in a container may open ping sockets",
        (body('"net.ipv4.ping_group_range": "1 0",', ""),),
        (BODY,),
    ),
    Mutant(
        "whose-container",
        "a container that carries our labels is ours, whoever made it",
        (backend('return found if name.lstrip("/") == expected else None', "return found"),),
        (f"{DOCKER}::test_labels_alone_make_no_container_ours",),
        engine=True,
    ),
    Mutant(
        "whose-labels",
        "a container of another station is ours if its name looks like it",
        (backend("if found is None or found.station != self.station_id:", "if found is None:"),),
        ("tests/docker/test_ownership.py::test_a_container_of_another_station_is_left_alone",),
        engine=True,
    ),
    Mutant(
        "stopped-containers",
        "the sweep sees running containers alone",
        (
            Edit(
                "src/station/backends/docker/engine.py",
                '{"all": "1", "filters": json.dumps(filters)}',
                '{"all": "0", "filters": json.dumps(filters)}',
            ),
        ),
        (f"{DOCKER}::test_what_a_crash_left_before_the_start_is_replaced_by_the_retry",),
        engine=True,
    ),
    Mutant(
        "fence-docker",
        "two processes attach to one container, and each reads a part",
        (
            Edit(
                "src/station/backends/docker/fence.py",
                "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
                "fd",
            ),
        ),
        (f"{DOCKER}::test_a_second_connection_from_elsewhere_waits_and_names_the_holder",),
        engine=True,
    ),
    Mutant(
        "resynchronise-docker",
        "half a frame of a dead station swallows the hello of the next (the repeated hello loses its zeros too)",
        (
            Edit("src/station/backends/docker/box.py", "await self._stream.resynchronise()", "pass"),
            Edit("src/station/guest/handshake.py", "bytes(RESYNC_ZEROS) + hello", "hello"),
        ),
        ("tests/docker/test_streams.py::test_half_a_frame_that_a_station_left_swallows_nothing_of_the_next",),
        by=("BoxLost",),
        engine=True,
    ),
    Mutant(
        "changed-from-outside",
        "a container that somebody has given more rights is taken over as it is",
        (
            Edit(
                "src/station/backends/docker/adoption.py",
                'known.get("fingerprint") != fingerprint(found)',
                "False",
            ),
        ),
        (f"{DOCKER}::test_a_box_that_was_changed_from_outside_is_replaced",),
        engine=True,
    ),
    Mutant(
        "damaged-guest",
        "a guest in the engine's volume that somebody has changed is run",
        (
            Edit(
                "src/station/backends/docker/helpers.py",
                "return content is not None and hashlib.sha256(content).hexdigest() == self._digest",
                "return content is not None",
            ),
        ),
        (f"{DOCKER}::test_a_damaged_guest_is_replaced",),
        by=("StationError",),
        engine=True,
    ),
)

BACKENDS: tuple[Mutant, ...] = (*_BUBBLEWRAP, *_DOCKER)
