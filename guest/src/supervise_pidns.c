/* Containment by a PID namespace: the supervisor is its init, so the kernel knows the tree and ends it with one call. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "supervise.h"

int pidns_mount_proc(void)
{
    if (guest.shared_mounts && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return errno;
    return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 ? errno : 0;
}

/* Some settings of the IPC namespace belong to whoever made it, which may be the user. */
int pidns_cover_settings(void)
{
    unsigned long kept = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (mount("/proc/sys", "/proc/sys", NULL, MS_BIND, NULL) < 0 ||
        mount(NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | kept, NULL) < 0)
        return errno;
    return 0;
}

/* The key rings of whoever made the user namespace are told there, by name. In each command's own mounts, and after its
 * /proc: a cover in the box's would keep the kernel from giving a command a fresh one. */
int pidns_cover_keys(void)
{
    static const char *const names[] = {"/proc/keys", "/proc/key-users"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mount("/dev/null", names[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
            return errno;
    return 0;
}

/* Where the probe found that a fresh /proc is refused (gVisor), the outer one shows what it does without namespaces. */
static int enter(void)
{
    int error = guest.fresh_proc ? pidns_mount_proc() : 0;
    if (!error && guest.cover_keys)
        error = pidns_cover_keys();
    return error || !guest.cover_settings ? error : pidns_cover_settings();
}

static void signal_all(int number)
{
    kill(-1, number);
}

static uint32_t end(void)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        continue;
    if (pid < 0)
        return 0; /* all of a namespace descends from its init: without a child it is empty */
    /* In one namespace this spares nobody: a fork under way sees the pending signal and fails. */
    kill(-1, SIGKILL);
    uint32_t ended = 0;
    while ((pid = waitpid(-1, &status, 0)) > 0 || errno == EINTR)
        if (pid > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            ended++; /* what was a zombie before has another status */
    return ended;
}

const struct containment contain_pidns = {enter, signal_all, end};
