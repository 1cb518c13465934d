/*
 * What user code may not ask of the kernel, on every backend.
 *
 * Three kinds of calls are refused: those that build or enter namespaces and mounts, those that reach into another
 * process (PID 1 first of all: a mere prlimit on it ends the box), and old or rare doors that no build, interpreter
 * or package manager needs. Everything else is allowed: a filter that breaks programs gets switched off.
 *
 * Only register values are tested, never memory, so there is nothing to change behind the filter's back. That is also
 * why clone3, whose flags lie in memory, does not exist here: libcs then use clone.
 */
#include "seccomp.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest.h"

#if defined(__x86_64__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCH AUDIT_ARCH_AARCH64
#else
#error "no system call table for this machine"
#endif

#define X32_BIT 0x40000000u
#define NEW_NAMESPACE_FLAGS 0x7E020000u /* CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} */
#define ADDR_NO_RANDOMIZE_ONLY 0x0040000u

enum check {
    DENY,            /* EPERM */
    ABSENT,          /* ENOSYS */
    SELF_ONLY,       /* the first argument, a pid, must be 0 */
    WHOM_SELF_ONLY,  /* (which, who): one process, and this one; `value` is `which` */
    NO_FLAGS,        /* no bit of `value` in the first argument */
    PERSONALITY,     /* a few harmless values */
    SOCKET_FAMILY,   /* local and internet; netlink for routes only */
    TERMINAL_REQUEST /* an ioctl that types into the terminal */
};

struct rule {
    uint32_t number;
    enum check check;
    uint32_t value;
};

/* Numbers that the libc's headers may not know yet are the same on both machines. */
#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif
#define SYS_open_tree_attr_ 467

static struct rule rules[] = {
    /* mounts and namespaces */
    {SYS_mount, DENY, 0},
    {SYS_umount2, DENY, 0},
    {SYS_pivot_root, DENY, 0},
    {SYS_chroot, DENY, 0},
    {SYS_fsopen, DENY, 0},
    {SYS_fsmount, DENY, 0},
    {SYS_fsconfig, DENY, 0},
    {SYS_fspick, DENY, 0},
    {SYS_move_mount, DENY, 0},
    {SYS_open_tree, DENY, 0},
    {SYS_open_tree_attr_, DENY, 0},
    {SYS_mount_setattr, DENY, 0},
    {SYS_unshare, DENY, 0},
    {SYS_setns, DENY, 0},
    {SYS_clone, NO_FLAGS, NEW_NAMESPACE_FLAGS},
    {SYS_clone3, ABSENT, 0},
    /* other processes */
    {SYS_ptrace, DENY, 0},
    {SYS_process_vm_readv, DENY, 0},
    {SYS_process_vm_writev, DENY, 0},
    {SYS_process_madvise, DENY, 0},
    {SYS_pidfd_getfd, DENY, 0},
    {SYS_kcmp, DENY, 0},
    {SYS_prlimit64, SELF_ONLY, 0},
    {SYS_sched_setaffinity, SELF_ONLY, 0},
    {SYS_sched_setscheduler, SELF_ONLY, 0},
    {SYS_sched_setparam, SELF_ONLY, 0},
    {SYS_sched_setattr, SELF_ONLY, 0},
    {SYS_migrate_pages, SELF_ONLY, 0},
    {SYS_move_pages, SELF_ONLY, 0},
    {SYS_setpriority, WHOM_SELF_ONLY, 0 /* PRIO_PROCESS */},
    {SYS_ioprio_set, WHOM_SELF_ONLY, 1 /* IOPRIO_WHO_PROCESS */},
    /* shared kernel state */
    {SYS_keyctl, DENY, 0},
    {SYS_add_key, DENY, 0},
    {SYS_request_key, DENY, 0},
    {SYS_syslog, DENY, 0},
    {SYS_acct, DENY, 0},
    {SYS_quotactl, DENY, 0},
    {SYS_quotactl_fd, DENY, 0},
    {SYS_swapon, DENY, 0},
    {SYS_swapoff, DENY, 0},
    {SYS_reboot, DENY, 0},
    {SYS_kexec_load, DENY, 0},
#ifdef SYS_kexec_file_load
    {SYS_kexec_file_load, DENY, 0},
#endif
    {SYS_init_module, DENY, 0},
    {SYS_finit_module, DENY, 0},
    {SYS_delete_module, DENY, 0},
    {SYS_settimeofday, DENY, 0},
    {SYS_clock_settime, DENY, 0},
    {SYS_clock_adjtime, DENY, 0},
    {SYS_adjtimex, DENY, 0},
    {SYS_vhangup, DENY, 0},
    /* large or odd attack surface */
    {SYS_io_uring_setup, DENY, 0},
    {SYS_io_uring_enter, DENY, 0},
    {SYS_io_uring_register, DENY, 0},
    {SYS_bpf, DENY, 0},
    {SYS_perf_event_open, DENY, 0},
    {SYS_userfaultfd, DENY, 0},
    {SYS_fanotify_init, DENY, 0},
    {SYS_name_to_handle_at, DENY, 0},
    {SYS_open_by_handle_at, DENY, 0},
    {SYS_memfd_secret, DENY, 0},
    {SYS_lookup_dcookie, DENY, 0},
    {SYS_personality, PERSONALITY, 0},
    {SYS_socket, SOCKET_FAMILY, 0},
    {SYS_ioctl, TERMINAL_REQUEST, 0},
#ifdef __x86_64__
    {SYS_iopl, DENY, 0},
    {SYS_ioperm, DENY, 0},
#endif
};

#define RULES (sizeof rules / sizeof rules[0])

static struct sock_filter code[1024];
static unsigned short length;

static void emit(uint16_t operation, uint32_t operand, uint8_t if_true, uint8_t if_false)
{
    code[length++] = (struct sock_filter){operation, if_true, if_false, operand};
}

static void answer(uint32_t action)
{
    emit(BPF_RET | BPF_K, action, 0, 0);
}

#define ALLOWED SECCOMP_RET_ALLOW
#define REFUSED (SECCOMP_RET_ERRNO | EPERM)
#define MISSING (SECCOMP_RET_ERRNO | ENOSYS)

/* The low half: the kernel, too, takes only that of every argument tested here. */
static void load_argument(int index)
{
    emit(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)index), 0, 0);
}

/* Skips `count` instructions if the loaded value is (not) `value`. */
static void skip_if_equal(uint32_t value, uint8_t count)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, value, count, 0);
}

static void skip_unless_equal(uint32_t value, uint8_t count)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count);
}

static void allow_only(const uint32_t *values, uint8_t count)
{
    for (uint8_t i = 0; i < count; i++)
        skip_if_equal(values[i], count - i);
    answer(REFUSED);
    answer(ALLOWED);
}

static void check_socket(void)
{
    static const uint32_t route = 0 /* NETLINK_ROUTE */;
    load_argument(0);
    skip_unless_equal(16 /* AF_NETLINK */, 4);
    load_argument(2);
    allow_only(&route, 1);
    allow_only((const uint32_t[]){1 /* AF_UNIX */, 2 /* AF_INET */, 10 /* AF_INET6 */}, 3);
}

static void check_arguments(const struct rule *rule)
{
    load_argument(0);
    switch (rule->check) {
    case SELF_ONLY:
        allow_only(&rule->value, 1);
        break;
    case WHOM_SELF_ONLY:
        skip_unless_equal(rule->value, 2);
        load_argument(1);
        skip_if_equal(0, 1);
        answer(REFUSED);
        answer(ALLOWED);
        break;
    case NO_FLAGS:
        emit(BPF_JMP | BPF_JSET | BPF_K, rule->value, 0, 1);
        answer(REFUSED);
        answer(ALLOWED);
        break;
    case PERSONALITY:
        allow_only((const uint32_t[]){0, 8, ADDR_NO_RANDOMIZE_ONLY, 0xffffffffu}, 4);
        break;
    case SOCKET_FAMILY:
        check_socket();
        break;
    default:
        load_argument(1);
        skip_if_equal(0x5412 /* TIOCSTI */, 2);
        skip_if_equal(0x541C /* TIOCLINUX */, 1);
        answer(ALLOWED);
        answer(REFUSED);
    }
}

/*
 * A search tree over the sorted numbers, not a list: the kernel walks the filter once for each of its system calls
 * when it is installed, which with a list costs more than starting a small program.
 */
static void compile(const struct rule *first, size_t count)
{
    if (count > 1) {
        size_t half = count / 2;
        emit(BPF_JMP | BPF_JGE | BPF_K, first[half].number, 0, 1);
        unsigned short jump = length;
        emit(BPF_JMP | BPF_JA, 0, 0, 0);
        compile(first, half);
        code[jump].k = length - jump - 1u;
        compile(first + half, count - half);
        return;
    }
    unsigned short test = length;
    skip_unless_equal(first->number, 0);
    if (first->check == DENY || first->check == ABSENT)
        answer(first->check == DENY ? REFUSED : MISSING);
    else
        check_arguments(first);
    code[test].jf = (uint8_t)(length - test - 1);
    answer(ALLOWED);
}

static int by_number(const void *left, const void *right)
{
    const struct rule *a = left, *b = right;
    return a->number < b->number ? -1 : a->number > b->number;
}

void seccomp_prepare(void)
{
    qsort(rules, RULES, sizeof rules[0], by_number);
    length = 0;
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
    skip_if_equal(OWN_ARCH, 1);
    answer(MISSING);
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    /* x32 numbers reach the same calls by other numbers. */
    emit(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    answer(MISSING);
    compile(rules, RULES);
}

int seccomp_install(void)
{
    struct sock_fprog program = {length, code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0 ? errno : 0;
}
