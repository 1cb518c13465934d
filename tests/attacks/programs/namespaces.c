/* K01, K02: mounts and namespaces. */
#include "attack.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void mounts_that_stay(void)
{
    call("mount", mount("none", "/tmp", "tmpfs", 0, NULL));
    call("bind mount", mount("/proc", "/tmp", NULL, MS_BIND, NULL));
    call("remount /", mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    call("umount /proc", umount2("/proc", MNT_DETACH));
}

/* Who may mount is told that there is no such thing, after he was let in; on a folder of our own, nothing is mounted. */
static void mounts_of_nothing(void)
{
    const char *here = "attack-folder";
    if (mkdir(here, 0700) != 0 && errno != EEXIST) return told("mkdir", -1);
    call("mount", mount("none", here, "no-such-system", 0, NULL));
    call("bind mount", mount("/no-such-folder", here, NULL, MS_BIND, NULL));
    call("remount", mount(NULL, here, NULL, MS_REMOUNT | MS_BIND, NULL));
    call("umount", umount2(here, MNT_DETACH));
    rmdir(here);
}

void mounts(int argc, char **argv)
{
    if (mild(argc, argv)) mounts_of_nothing();
    else mounts_that_stay();
    call("pivot_root", syscall(SYS_pivot_root, NULL, NULL));
    call("fsopen", syscall(NR_FSOPEN, "tmpfs", 0));
    call("fspick", syscall(NR_FSPICK, AT_FDCWD, "/", 0));
    call("open_tree", syscall(NR_OPEN_TREE, AT_FDCWD, "/", 0x8001));
    call("mount_setattr", syscall(NR_MOUNT_SETATTR, -1, NULL, BAD_FLAGS, NULL, 0));
    call("move_mount", syscall(NR_MOVE_MOUNT, -1, NULL, -1, NULL, BAD_FLAGS));
    call("chroot", syscall(SYS_chroot, NULL));
}

static long unshared(int flags)
{
    long result = unshare(flags);
    return result;
}

static long in_user(void) { return unshared(CLONE_NEWUSER); }
static long in_mounts(void) { return unshared(CLONE_NEWNS); }
static long in_network(void) { return unshared(CLONE_NEWNET); }
static long in_pids(void) { return unshared(CLONE_NEWPID); }
static long in_time(void) { return unshared(0x80); }

static long reaped(long pid)
{
    if (pid == 0) _exit(0);
    int kept = errno;
    if (pid > 0) waitpid((pid_t)pid, NULL, 0);
    errno = kept;
    return pid;
}

static long cloned(void) { return reaped(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)); }

static long cloned3(void)
{
    uint64_t arguments[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
    return reaped(syscall(NR_CLONE3, arguments, 64));
}

static long entered(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/1/ns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -1 : setns(fd, 0);
}

static long enter_pids(void) { return entered("pid"); }
static long enter_mounts(void) { return entered("mnt"); }

void namespaces(int argc, char **argv)
{
    (void)argc, (void)argv;
    static const struct {
        const char *what;
        long (*body)(void);
    } ways[] = {
        {"unshare(user)", in_user}, {"unshare(mounts)", in_mounts}, {"unshare(network)", in_network},
        {"unshare(pids)", in_pids}, {"unshare(time)", in_time}, {"clone(user)", cloned}, {"clone3(user)", cloned3},
        {"setns(pid of 1)", enter_pids}, {"setns(mounts of 1)", enter_mounts},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        /* Each in a child of its own: what one has entered is no ground for the next. */
        int answer[2];
        long got[2] = {-1, EIO};
        if (pipe(answer) != 0) continue;
        pid_t child = fork();
        if (child == 0) {
            got[0] = ways[i].body();
            got[1] = errno;
            if (write(answer[1], got, sizeof got) < 0) _exit(1);
            _exit(0);
        }
        close(answer[1]);
        if (read(answer[0], got, sizeof got) < 0) got[1] = EIO;
        close(answer[0]);
        waitpid(child, NULL, 0);
        errno = (int)got[1];
        call_limited(ways[i].what, got[0]);
    }
}
