/* K04, K05, K06, K07, K13: calls that only root may make, and other tables of calls. */
#include "attack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>

void privileged(int argc, char **argv)
{
    call("bpf", syscall(SYS_bpf, 99, NULL, 0));
    call("perf_event_open", syscall(SYS_perf_event_open, NULL, 0, 0, 0, 0));
    call("userfaultfd", syscall(SYS_userfaultfd, BAD_FLAGS));
    call("init_module", syscall(SYS_init_module, NULL, 0, NULL));
    call("finit_module", syscall(SYS_finit_module, -1, NULL, BAD_FLAGS));
    call("delete_module", syscall(SYS_delete_module, NULL, 0));
    call("quotactl", syscall(SYS_quotactl, BAD_FLAGS, NULL, 0, NULL));
    call("acct", syscall(SYS_acct, (void *)1));
    call("syslog", syscall(SYS_syslog, 3, NULL, 0));
    call("fanotify_init", syscall(SYS_fanotify_init, BAD_FLAGS, 0));
    call("open_by_handle_at", syscall(SYS_open_by_handle_at, -1, NULL, 0));
#ifdef __x86_64__
    call("iopl", syscall(SYS_iopl, 4));
    call("ioperm", syscall(SYS_ioperm, 0xFFFFFFFFUL, 2, 1));
#endif
    if (mild(argc, argv)) return;
    call("kexec_load", syscall(SYS_kexec_load, 0, 0, NULL, BAD_FLAGS));
#ifdef SYS_kexec_file_load
    call("kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, NULL, BAD_FLAGS));
#endif
    call("reboot", syscall(SYS_reboot, 1, 2, 3, NULL));
    call("swapon", syscall(SYS_swapon, NULL, 0));
    call("swapoff", syscall(SYS_swapoff, NULL));
}

void rings(int argc, char **argv)
{
    (void)argc, (void)argv;
    char parameters[256] = {0};
    call("io_uring_setup", syscall(NR_IO_URING_SETUP, 4, parameters));
    call("io_uring_enter", syscall(NR_IO_URING_ENTER, -1, 0, 0, 0, NULL, 0));
    call("io_uring_register", syscall(NR_IO_URING_REGISTER, -1, 0, NULL, 0));
}

void clocks(int argc, char **argv)
{
    (void)argc, (void)argv;
    struct timespec no_time = {0, 2000000000};
    struct timeval no_time_either = {0, 2000000};
    struct timex no_tick = {.modes = ADJ_TICK, .tick = 1};
    call("clock_settime", syscall(SYS_clock_settime, CLOCK_REALTIME, &no_time));
    call("settimeofday", syscall(SYS_settimeofday, &no_time_either, NULL));
    call("adjtimex", syscall(SYS_adjtimex, &no_tick));
    call("clock_adjtime", syscall(SYS_clock_adjtime, CLOCK_REALTIME, &no_tick));
}

enum { KEYCTL_REVOKE = 3, KEYCTL_SEARCH = 10, USER_KEYRING = -4 };

/* keys put NAME | find NAME | remove NAME: whether what one has put, another one finds. */
void keys(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "station-attack";
    if (argc > 0 && strcmp(argv[0], "put") == 0) {
        call("add_key", syscall(SYS_add_key, "user", name, "word", 4L, USER_KEYRING));
        return;
    }
    long key = syscall(SYS_keyctl, KEYCTL_SEARCH, USER_KEYRING, "user", name, 0);
    judged("keyctl(search)", key, key >= 0);
    if (argc > 0 && strcmp(argv[0], "remove") == 0) told("keyctl(revoke)", syscall(SYS_keyctl, KEYCTL_REVOKE, key));
    long asked = syscall(SYS_request_key, "user", name, NULL, 0);
    judged("request_key", asked, asked >= 0);
}

#ifdef __x86_64__
static uint32_t *low;

static long old_call(long number, long first, long second)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second), "d"(0L) : "memory", "r8", "r9", "r10", "r11");
    result = (int32_t)result;
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

/* A kernel that takes int 0x80 for a call of the usual table (gVisor) does nothing of what was asked for. */
static long refuse(void)
{
    errno = ENOSYS;
    return -1;
}

static long old_getpid(void)
{
    long got = old_call(20, 0, 0);
    return got == getpid() ? got : refuse();
}

static long old_socket(void)
{
    int family = 0;
    socklen_t size = sizeof family;
    long fd = old_call(102, 1 /* SYS_SOCKET */, (long)low);
    if (fd < 0) return -1;
    return getsockopt((int)fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_VSOCK ? fd : refuse();
}

static long x32_getpid(void) { return syscall(0x40000000 | SYS_getpid); }
static long x32_ptrace(void) { return syscall(0x40000000 | 521, 16, 1, 0, 0); }
#endif

static long vsock(void) { return socket(AF_VSOCK, SOCK_STREAM, 0); }

void other_calls(int argc, char **argv)
{
    (void)argc, (void)argv;
#ifdef __x86_64__
    low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    low[0] = AF_VSOCK, low[1] = SOCK_STREAM, low[2] = 0;
    in_child("int 0x80: getpid", old_getpid);
    in_child("int 0x80: socketcall(vsock)", old_socket);
    in_child("x32: getpid", x32_getpid);
    in_child("x32: ptrace", x32_ptrace);
#endif
    long got = vsock();
    call_limited("socket(vsock)", got);
}
