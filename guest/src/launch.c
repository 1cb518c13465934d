/* stn-guest launch [options] -- ARGV...: cgroups, limits, user, user namespace and stage, then ARGV without environment.
 *
 *   --cgroup FILE              join by writing to this cgroup.procs
 *   --rlimit NAME=SOFT:HARD    nproc, nofile, core, fsize
 *   --become UID:GID           root alone: be that user, without other groups
 *   --users shared | U:G       a user namespace in which we are 1000; with U:G also 0 is outer U, G, and ARGV runs as that
 *   --max-userns N             how many user namespaces may be made inside it
 *   --stage DIR, --bind NAME=SOURCE, --tmpfs NAME=SIZE:INODES:MODE   a private DIR with these in it
 *   --folder NAME=SOURCE       as --bind, but of a folder that others write: no link is followed on the way to it
 *   --pin NAME, --protect NAME a path in that folder that cannot be renamed away, and one that is read-only too
 *
 *   --info-fd N                write our pid there, in bwrap's words; for a box that has no bwrap
 *   --last-fd N                no descriptor above N passes through: whoever started the station may have left some open
 *
 * A failure is one line on stderr and exit 125. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch.h"

void launch_fail(const char *what, const char *which)
{
    fprintf(stderr, "launch: %s %s: %s\n", what, which, strerror(errno));
    exit(LAUNCH_FAILED);
}

static void join(const char *procs)
{
    int fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1)
        launch_fail("join", procs);
    close(fd);
}

static void limit(const char *item)
{
    static const struct { const char *name; int resource; } known[] = {
        {"nproc", RLIMIT_NPROC}, {"nofile", RLIMIT_NOFILE}, {"core", RLIMIT_CORE}, {"fsize", RLIMIT_FSIZE}};
    const char *equals = strchr(item, '=');
    unsigned long long soft, hard;
    if (equals == NULL || sscanf(equals, "=%llu:%llu", &soft, &hard) != 2)
        launch_fail("not NAME=SOFT:HARD", item);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(item, known[i].name, (size_t)(equals - item)) != 0 || known[i].name[equals - item] != '\0')
            continue;
        struct rlimit now, wanted = {.rlim_cur = soft, .rlim_max = hard};
        if (getrlimit(known[i].resource, &now) != 0)
            launch_fail("getrlimit", item);
        if (wanted.rlim_max > now.rlim_max) /* a tighter bound of the station's own stays */
            wanted.rlim_max = now.rlim_max;
        if (wanted.rlim_cur > wanted.rlim_max)
            wanted.rlim_cur = wanted.rlim_max;
        if (setrlimit(known[i].resource, &wanted) != 0)
            launch_fail("setrlimit", item);
        return;
    }
    launch_fail("unknown limit", item);
}

/* The user namespace takes over the limit that holds when it is made: see launch_userns.c. */
static void lift_nproc(void)
{
    struct rlimit nproc = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_NPROC, &nproc) == 0 || getrlimit(RLIMIT_NPROC, &nproc) != 0)
        return;
    nproc.rlim_cur = nproc.rlim_max;
    setrlimit(RLIMIT_NPROC, &nproc);
}

static void close_above(int last)
{
    if (last < 0 || syscall(SYS_close_range, (unsigned)last + 1, ~0u, 0) == 0)
        return;
    for (int fd = last + 1; fd < 4096; fd++) /* before Linux 5.9 */
        close(fd);
}

static void tell_pid(int fd)
{
    if (fd >= 0 && (dprintf(fd, "{\"child-pid\": %d}\n", getpid()) < 0 || close(fd) != 0))
        launch_fail("write", "the pid");
}

/* By descriptor where the user that we have become may not walk to the program. */
static void run(char **argv, int program)
{
    char *const nothing[] = {NULL};
    execve(argv[0], argv, nothing);
    if (errno == EACCES && program >= 0)
        syscall(SYS_execveat, program, "", argv, nothing, AT_EMPTY_PATH);
    launch_fail("exec", argv[0]);
}

static void reset_signals(void)
{
    static const unsigned long by_default[4]; /* as the kernel has it: the libc refuses numbers that it uses itself */
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        syscall(SYS_rt_sigaction, number, by_default, NULL, 8); /* fails for some, rightly */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int launch_main(int argc, char **argv)
{
    static struct launch plan;
    if (!launch_parse(&plan, argc, argv)) {
        fprintf(stderr, "launch: the options make no sense\n");
        return LAUNCH_FAILED;
    }
    umask(022);
    reset_signals();
    close_above(plan.last_fd);
    setsid(); /* fails only for a group leader, who has no terminal of ours to lose */
    if (chdir("/") != 0)
        launch_fail("chdir", "/");
    for (int i = 0; i < plan.cgroup_count; i++)
        join(plan.cgroups[i]);
    tell_pid(plan.info_fd);
    lift_nproc();
    int program = open(plan.argv[0], O_PATH | O_CLOEXEC);
    if (plan.become) {
        launch_stage(&plan, plan.uid);
        launch_enter_userns(&plan);
    } else {
        launch_enter_userns(&plan);
        launch_stage(&plan, plan.users == USERS_AS_THEY_ARE ? geteuid() : BOX_USER);
    }
    if (plan.users == USERS_SEPARATE &&
        (setgroups(0, NULL) != 0 || setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0))
        launch_fail("become", "the guest's user");
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    for (int i = 0; i < plan.rlimit_count; i++)
        limit(plan.rlimits[i]);
    run(plan.argv, program);
    return LAUNCH_FAILED;
}
