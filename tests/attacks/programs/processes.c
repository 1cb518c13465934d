/* K03, R11, R14, R16: other processes, and one's own. */
#include "attack.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
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
