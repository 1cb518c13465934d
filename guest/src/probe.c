/* What this kernel or sandbox really grants: found by doing it once, never read off a version. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"
#include "loop.h"
#include "supervise.h"

static bool mounts_are_shared(void)
{
    char line[4096];
    bool shared = false;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    while (file && !shared && fgets(line, sizeof line, file))
        shared = strstr(line, " shared:") != NULL;
    if (file)
        fclose(file);
    return shared;
}

enum { NO_PROC = 1, NO_COVER = 2, NO_KEYS = 4 };

static int try_steps(void)
{
    int failed = pidns_mount_proc() ? NO_PROC : 0;
    failed |= pidns_cover_keys() ? NO_KEYS : 0;
    /* The box's own /proc/sys shows what it does without namespaces. */
    return failed | (failed & NO_PROC || pidns_cover_settings() ? NO_COVER : 0);
}

/* Makes one namespace as every command would. The child tells by its exit code how far it came. */
static void probe_pidns(void)
{
    guest.shared_mounts = mounts_are_shared();
    guest.fresh_proc = true;
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(try_steps());
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return;
    guest.capabilities |= CAN_PIDNS;
    guest.fresh_proc = !(WEXITSTATUS(status) & NO_PROC);
    guest.cover_settings = !(WEXITSTATUS(status) & NO_COVER);
    guest.cover_keys = !(WEXITSTATUS(status) & NO_KEYS);
    if (!guest.fresh_proc)
        complain("no fresh /proc in a PID namespace: commands see the box's", 0);
    else if (!guest.cover_settings)
        complain("/proc/sys cannot be made read-only", 0);
    if (!guest.cover_keys)
        complain("/proc/keys cannot be covered", 0);
}

static bool can_open_beneath(void)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = (int)syscall(SYS_openat2, root, ".", &how, sizeof how);
    close(root);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool can_filter(void)
{
    uint32_t action = SECCOMP_RET_ERRNO;
    if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0)
        return true;
    /* Older than that question: a NULL program is refused with EFAULT only where filters exist. */
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) < 0 && errno == EFAULT;
}

static bool no_socket(int family, int type)
{
    int fd = socket(family, type | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

/* A NULL that the kernel complains of has come too far. */
static bool no_io_uring(void)
{
    return syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno != EFAULT && errno != EINVAL;
}

/* What a filter around the whole box refuses to the guest itself: of these, engines' own filters let some through. */
static void probe_filter(void)
{
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == SECCOMP_MODE_FILTER)
        guest.capabilities |= IS_FILTERED;
    if (no_io_uring() && no_socket(AF_VSOCK, SOCK_STREAM) && no_socket(AF_ALG, SOCK_SEQPACKET))
        guest.capabilities |= DOORS_SHUT;
}

bool probe_run(void)
{
    if (guest.containment != CONTAIN_SUBREAPER)
        probe_pidns();
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
        guest.capabilities |= CAN_SUBREAPER;
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (pidfd >= 0) {
        guest.capabilities |= CAN_PIDFD;
        close(pidfd);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    if (access(path, R_OK) == 0)
        guest.capabilities |= CAN_CHILDREN_FILE;
    if (guest.want_openat2 && can_open_beneath())
        guest.capabilities |= CAN_OPENAT2;
    if (guest.want_seccomp && can_filter())
        guest.capabilities |= CAN_SECCOMP;
    if (guest.change_user && guest.uid != getuid())
        guest.capabilities |= CAN_SEPARATE_UID;
    probe_filter();
    if (guest.containment == CONTAIN_PIDNS && !(guest.capabilities & CAN_PIDNS)) {
        complain("no PID namespace can be made here", 0);
        return false;
    }
    return true;
}
