#include "supervise.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fds.h"
#include "start_main.h"
#include "lockdown.h"

static void on_child(int number)
{
    (void)number; /* only interrupts ppoll */
}

static void report(int control, struct tree_report word)
{
    while (send(control, &word, sizeof word, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

static uint64_t microseconds(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

/* Everything below the supervisor has been reaped by it, so its children's usage is that of the tree. */
static struct tree_report ending_of(int status, uint32_t ended_children)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (struct tree_report){
        .kind = WIFEXITED(status) ? ENDING_EXITED : ENDING_SIGNALLED,
        .value = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
        .ended_children = ended_children,
        .user_us = microseconds(usage.ru_utime),
        .system_us = microseconds(usage.ru_stime),
        .max_rss_kib = (uint64_t)usage.ru_maxrss,
    };
}

/* Whether the main process was among those reaped. Orphans of the tree are reaped on the way. */
static bool reap_until_main(pid_t main_pid, int *main_status)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == main_pid) {
            *main_status = status;
            return true;
        }
    }
    return false;
}

/* False when the guest is gone: then nobody will ever ask for this tree again. */
static bool obey(const struct containment *containment, int control)
{
    struct tree_order order;
    ssize_t got = recv(control, &order, sizeof order, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got != sizeof order)
        return false;
    containment->signal(order.signal);
    if (order.then_continue)
        containment->signal(SIGCONT);
    return true;
}

static _Noreturn void watch_tree(const struct containment *containment, int control, pid_t main_pid)
{
    sigset_t waiting;
    sigprocmask(SIG_SETMASK, NULL, &waiting);
    sigdelset(&waiting, SIGCHLD);
    struct pollfd poll_control = {.fd = control, .events = POLLIN};
    int status;
    while (!reap_until_main(main_pid, &status)) {
        if (ppoll(&poll_control, 1, NULL, &waiting) > 0 && !obey(containment, control)) {
            containment->end();
            _exit(0);
        }
    }
    uint32_t ended = containment->end();
    report(control, ending_of(status, ended));
    _exit(0);
}

_Noreturn void supervise(const struct containment *containment, const struct command *command, int control)
{
    struct sigaction interrupt = {.sa_handler = on_child};
    sigaction(SIGCHLD, &interrupt, NULL);
    /* The guest's handler would swallow a TERM that reaches the child before its exec. */
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGTERM, &plain, NULL);
    struct start_failure failure = {ENDING_NO_MEANS, containment->enter()};
    pid_t main_pid = failure.error ? -1 : start_main(command, &failure);
    if (main_pid < 0) {
        report(control, (struct tree_report){.kind = failure.kind, .value = failure.error});
        _exit(0);
    }
    control = fds_keep_only(control);
    lockdown_supervisor();
    report(control, (struct tree_report){.value = main_pid});
    watch_tree(containment, control, main_pid);
}
