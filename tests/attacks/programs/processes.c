/* K03, R01, R02, R08, R09, R10, R11, R14, R16: other processes, and one's own. */
#include "attack.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>

static long read_memory(pid_t pid)
{
    char buffer[16];
    struct iovec local = {buffer, sizeof buffer}, remote = {(void *)"somewhere in here", 16};
    return syscall(SYS_process_vm_readv, pid, &local, 1L, &remote, 1L, 0L);
}

static void read_first(const char *path)
{
    char byte;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    long got = fd < 0 ? -1 : read(fd, &byte, 1);
    judged(path, got, got > 0);
    if (fd >= 0) close(fd);
}

void processes(int argc, char **argv)
{
    (void)argc, (void)argv;
    pid_t other = fork();
    if (other == 0) {
        pause();
        _exit(0);
    }
    call("ptrace(another)", ptrace(PTRACE_SEIZE, other, 0, 0));
    call("process_vm_readv(another)", read_memory(other));
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    call("ptrace(1)", ptrace(PTRACE_SEIZE, 1, 0, 0));
    long pidfd = syscall(NR_PIDFD_OPEN, 1, 0);
    call("pidfd_getfd(1)", pidfd < 0 ? -1 : syscall(NR_PIDFD_GETFD, pidfd, 0, 0));
    call("kcmp(1)", syscall(SYS_kcmp, 1, getpid(), 0, 0, 0));
    opened("/proc/1/mem", O_RDONLY);
    read_first("/proc/1/environ");
    read_first("/proc/1/maps");
    opened("/proc/1/root", O_RDONLY | O_DIRECTORY);
    DIR *fds = opendir("/proc/1/fd");
    judged("list /proc/1/fd", fds ? 0 : -1, fds != NULL);
    if (fds) closedir(fds);
}

/* zombies COUNT LIMIT: more than LIMIT at once are harm. */
void zombies(int argc, char **argv)
{
    long count = argc > 0 ? atol(argv[0]) : 10000, limit = argc > 1 ? atol(argv[1]) : 256, made = 0;
    while (made < count) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0) break;
        made++;
    }
    judged("zombies at once", made, made > limit);
}

/* crowd COUNT LIMIT: so many that live at once; they end with this one's word. */
void crowd(int argc, char **argv)
{
    long count = argc > 0 ? atol(argv[0]) : 64, limit = argc > 1 ? atol(argv[1]) : 32, made = 0;
    pid_t *children = calloc((size_t)count, sizeof *children);
    while (children && made < count) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(20);
            pause();
            _exit(0);
        }
        if (child < 0) break;
        children[made++] = child;
    }
    int kept = errno;
    for (long i = 0; i < made; i++) kill(children[i], SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    free(children);
    errno = kept;
    judged("processes at once", made, made > limit);
}

/* memory MIB: each page of it is written. */
void memory(int argc, char **argv)
{
    size_t size = (size_t)(argc > 0 ? atol(argv[0]) : 64) << 20;
    volatile char *all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return judged("MiB written", -1, false);
    for (size_t at = 0; at < size; at += 4096) all[at] = 1;
    judged("MiB written", (long)(size >> 20), true);
}

/* daemonised TOKEN [hold]: in a session of its own, without an environment, under the name TOKEN, for 30 s. */
void daemonised(int argc, char **argv)
{
    const char *token = argc > 0 ? argv[0] : "station-attack";
    char *const empty[] = {NULL};
    int begun[2];
    bool holds = argc > 1 && strcmp(argv[1], "hold") == 0;
    if (argc > 1 && !holds) {
        for (int fd = 0; fd < 3; fd++) close(fd);
        sleep(30);
        _exit(0);
    }
    if (pipe2(begun, O_CLOEXEC) != 0) abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        execve("/proc/self/exe", (char *const[]){(char *)token, "R10", (char *)token, "stay", NULL}, empty);
        if (write(begun[1], "x", 1) < 0) _exit(1);
        _exit(1);
    }
    char byte;
    close(begun[1]);
    long failed = read(begun[0], &byte, 1); /* the end of the file: it has become what it is to be */
    waitpid(child, NULL, 0);
    told("daemon", failed == 0 ? 0 : -1);
    if (!holds) return;
    report();
    while (read(0, &byte, 1) > 0) {
    }
}

/* deaf TOKEN: for 30 s, whatever it is sent; TOKEN stands in its command line. */
void deaf(int argc, char **argv)
{
    (void)argc, (void)argv;
    for (int number = 1; number < 65; number++) signal(number, SIG_IGN);
    told("deaf", 0);
    report();
    sleep(30);
}

/* signals [NUMBER]: also sends it to everything, once the line is out. */
void signals(int argc, char **argv)
{
    struct rlimit none = {1, 1};
    cpu_set_t first;
    struct sched_param normal = {0};
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    told("kill(1, STOP)", kill(1, SIGSTOP));
    told("kill(1, KILL)", kill(1, SIGKILL));
    call("prlimit(1)", prlimit(1, RLIMIT_NOFILE, &none, NULL));
    call("setpriority(1)", setpriority(PRIO_PROCESS, 1, 19));
    call("sched_setaffinity(1)", syscall(SYS_sched_setaffinity, 1, sizeof first, &first));
    call("sched_setscheduler(1)", syscall(SYS_sched_setscheduler, 1, SCHED_IDLE, &normal));
    report();
    if (argc > 0) kill(-1, atoi(argv[0]));
}

static void *second(void *path)
{
    struct timespec while_ago = {1, 500000000};
    nanosleep(&while_ago, NULL);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && write(fd, "yes", 3) < 0) fd = -1;
    syscall(SYS_exit_group, 7);
    return NULL;
}

/* threads PATH: the first thread exits alone, as if all were over; the second one marks PATH and exits with 7. */
void threads(int argc, char **argv)
{
    pthread_t thread;
    long made = argc > 0 ? pthread_create(&thread, NULL, second, argv[0]) : -1;
    told("the first thread is gone", made);
    report();
    syscall(SYS_exit, 0);
}
