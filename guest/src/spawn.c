/* The fork: pipes, the supervisor or the applet, and the guest's ends of both. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "applet.h"
#include "fds.h"
#include "lockdown.h"
#include "process.h"
#include "supervise.h"

enum { STDIN, STDOUT, STDERR };

struct plumbing {
    int theirs[3];
    int ours[3];
    int control[2]; /* ours, the supervisor's */
};

static void close_all(int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Only our ends do not block: the process expects plain pipes. */
static bool open_pipe(struct plumbing *plumbing, int number)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return false;
    plumbing->ours[number] = ends[number == STDIN];
    plumbing->theirs[number] = ends[number != STDIN];
    fds_note(ends[0]);
    fds_note(ends[1]);
    return fd_set_nonblocking(plumbing->ours[number]);
}

static int open_plumbing(struct plumbing *plumbing, const struct record *record)
{
    *plumbing = (struct plumbing){{-1, -1, -1}, {-1, -1, -1}, {-1, -1}};
    bool ok;
    if (record->flags & RECORD_STDIN)
        ok = open_pipe(plumbing, STDIN);
    else
        ok = (plumbing->theirs[STDIN] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
    ok = ok && open_pipe(plumbing, STDOUT) && open_pipe(plumbing, STDERR);
    if (ok && !(record->flags & RECORD_APPLET))
        ok = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, plumbing->control) == 0;
    return ok ? 0 : errno;
}

static _Noreturn void run_supervisor(const struct record *record, const struct plumbing *plumbing)
{
    struct command command = {record->cwd, record->argv, record->envp, {0}};
    for (int i = 0; i < 3; i++)
        command.stdio[i] = plumbing->theirs[i];
    bool pidns = guest.capabilities & CAN_PIDNS;
    supervise(pidns ? &contain_pidns : &contain_subreaper, &command, plumbing->control[1]);
}

static _Noreturn void run_applet(const struct record *record, const struct plumbing *plumbing)
{
    for (int i = 0; i < 3; i++)
        if (dup2(plumbing->theirs[i], i) < 0)
            _exit(errno);
    fds_keep_only(-1);
    loop_leave_in_child();
    _exit(applet_run(record->argv));
}

static pid_t fork_child(const struct record *record, const struct plumbing *plumbing)
{
    bool applet = record->flags & RECORD_APPLET;
    unsigned long flags = SIGCHLD;
    if (!applet && guest.capabilities & CAN_PIDNS)
        flags |= CLONE_NEWPID | CLONE_NEWNS;
    oom_expose(true);
    pid_t pid = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
    int error = errno;
    if (pid == 0 && applet)
        run_applet(record, plumbing);
    if (pid == 0)
        run_supervisor(record, plumbing);
    oom_expose(false);
    errno = error;
    return pid;
}

static void take_report(void *owner, uint32_t events)
{
    (void)events;
    struct process *process = owner;
    struct tree_report word;
    while (process->control.fd >= 0 && recv(process->control.fd, &word, sizeof word, MSG_DONTWAIT) == sizeof word) {
        if (word.kind == 0) {
            process->shown_pid = guest.capabilities & CAN_PIDNS ? process->pid : word.value;
            continue;
        }
        process_tree_ended(process, (struct ending){.kind = word.kind,
                                                    .value = word.value,
                                                    .ended_children = word.ended_children,
                                                    .user_us = word.user_us,
                                                    .system_us = word.system_us,
                                                    .max_rss_kib = word.max_rss_kib});
        return;
    }
    /* Its end without a word: the reaping decides what that means. */
    if (events & (EPOLLHUP | EPOLLERR))
        watch_set(&process->control, 0);
}

int spawn(struct process *process, const struct record *record)
{
    struct plumbing plumbing;
    int error = open_plumbing(&plumbing, record);
    pid_t pid = error ? -1 : fork_child(record, &plumbing);
    if (pid < 0) {
        error = error ? error : errno;
        close_all(plumbing.ours, 3);
        close_all(plumbing.theirs, 3);
        close_all(plumbing.control, 2);
        return error;
    }
    close_all(plumbing.theirs, 3);
    close_all(plumbing.control + 1, 1);
    process->pid = pid;
    process->awaited = true;
    if (process->applet)
        process->shown_pid = pid;
    process->input.pipe.fd = plumbing.ours[STDIN];
    process->streams[0].pipe.fd = plumbing.ours[STDOUT];
    process->streams[1].pipe.fd = plumbing.ours[STDERR];
    process->control = (struct watch){.fd = plumbing.control[0], .ready = take_report, .owner = process};
    if (process->control.fd >= 0)
        watch_set(&process->control, EPOLLIN);
    output_watch(process);
    return 0;
}
