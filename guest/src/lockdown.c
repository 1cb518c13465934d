#include "lockdown.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop.h"
#include "seccomp.h"

static unsigned char bounding[64]; /* the capabilities that the guest was given and user code must lose */
static int bounding_count;
static int oom_fd = -1;
static char oom_own[16];

static void set(const char *file, const char *value)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, value, strlen(value)) < 0)
        complain("an IPC limit cannot be set", errno);
    if (fd >= 0)
        close(fd);
}

/* System V objects outlive the processes that made them, and belong to no process whose memory could be watched. As PID 1
 * the IPC namespace is ours alone; kernels before 5.19 let nobody but the machine's root set this. */
static void bound_ipc(void)
{
    struct statvfs shm;
    char pages[24];
    if (getpid() != 1 || statvfs("/dev/shm", &shm) < 0 || shm.f_blocks == 0)
        return;
    snprintf(pages, sizeof pages, "%llu", (unsigned long long)shm.f_blocks * shm.f_frsize / (unsigned)getpagesize());
    set("/proc/sys/kernel/shmall", pages);
    set("/proc/sys/kernel/shmmni", "1024");
    set("/proc/sys/kernel/sem", "1000 32000 500 1024");
    set("/proc/sys/kernel/msgmni", "512"); /* of 16 KiB */
}

void lockdown_prepare(void)
{
    bound_ipc();
    for (int capability = 0; capability < 64; capability++)
        if (prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1)
            bounding[bounding_count++] = (unsigned char)capability;
    /* Opened while still dumpable: afterwards the file belongs to root. */
    oom_fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (oom_fd >= 0 && read(oom_fd, oom_own, sizeof oom_own - 1) <= 0) {
        close(oom_fd);
        oom_fd = -1;
    }
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    seccomp_prepare();
}

void oom_expose(bool exposed)
{
    const char *value = exposed ? "1000" : oom_own;
    if (oom_fd >= 0 && pwrite(oom_fd, value, strlen(value), 0) < 0) {
        close(oom_fd); /* a courtesy, not a boundary: gVisor and old kernels may refuse */
        oom_fd = -1;
    }
}

static int set_capabilities(uint32_t kept)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    if (kept) {
        if (syscall(SYS_capget, &header, data) < 0)
            return errno;
        data[0].permitted &= kept;
    }
    data[0].effective = data[0].permitted;
    data[0].inheritable = 0;
    data[1] = (struct __user_cap_data_struct){0};
    return syscall(SYS_capset, &header, data) < 0 ? errno : 0;
}

void lockdown_supervisor(void)
{
    set_capabilities(1u << CAP_KILL);
}

/* Raw calls: the libc wrappers keep state of their own, and a vforked child shares it with its parent. */
static int become_user(void)
{
    for (int i = 0; i < bounding_count; i++)
        if (prctl(PR_CAPBSET_DROP, bounding[i], 0, 0, 0) < 0)
            break; /* no CAP_SETPCAP: without privileges to gain, the set is inert */
    if (guest.change_user &&
        (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, guest.gid, guest.gid, guest.gid) < 0 ||
         syscall(SYS_setresuid, guest.uid, guest.uid, guest.uid) < 0))
        return errno;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    int error = set_capabilities(0);
    if (!error && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        error = errno;
    return error;
}

int lockdown_user_code(void)
{
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (guest.nproc) {
        struct rlimit processes = {(rlim_t)guest.nproc, (rlim_t)guest.nproc};
        if (setrlimit(RLIMIT_NPROC, &processes) < 0)
            return errno;
    }
    int error = become_user();
    if (!error && guest.capabilities & CAN_SECCOMP)
        error = seccomp_install();
    return error;
}

int lockdown_applet(void)
{
    int error = become_user();
    /* A change of user resets this flag to what fs.suid_dumpable says. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    return error;
}
