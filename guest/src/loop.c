#include "loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static int epoll_fd = -1;
static sigset_t waiting_mask;
static volatile sig_atomic_t child_changed;
static volatile sig_atomic_t asked_to_end;

uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void on_signal(int number)
{
    if (number == SIGCHLD)
        child_changed = 1;
    else
        asked_to_end = 1;
}

/* Handlers with epoll_pwait, not a signalfd: a forked supervisor would read this process's signals from that. */
void loop_open(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    for (int number = 1; number < 32; number++)
        sigaction(number, &plain, NULL);
    struct sigaction caught = {.sa_handler = on_signal};
    sigaction(SIGCHLD, &caught, NULL);
    sigaction(SIGTERM, &caught, NULL);

    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    sigemptyset(&waiting_mask);
    sigaddset(&waiting_mask, SIGPIPE);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
}

bool watch_set(struct watch *watch, uint32_t events)
{
    if (watch->events == events || watch->fd < 0)
        return true;
    struct epoll_event event = {.events = events, .data.ptr = watch};
    int operation = events == 0 ? EPOLL_CTL_DEL : watch->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(epoll_fd, operation, watch->fd, &event) < 0)
        return false;
    watch->events = events;
    return true;
}

void watch_close(struct watch *watch)
{
    if (watch->fd < 0)
        return;
    /* Explicitly: a supervisor may still hold a copy, which would keep the epoll entry alive. */
    watch_set(watch, 0);
    close(watch->fd);
    watch->fd = -1;
}

static int milliseconds_until(uint64_t deadline)
{
    if (deadline == NEVER)
        return -1;
    uint64_t now = now_us();
    if (deadline <= now)
        return 0;
    uint64_t left = (deadline - now + 999) / 1000;
    return left > 3600000 ? 3600000 : (int)left;
}

void loop_turn(uint64_t deadline)
{
    struct epoll_event events[64];
    int count = epoll_pwait(epoll_fd, events, 64, milliseconds_until(deadline), &waiting_mask);
    for (int i = 0; i < count; i++) {
        struct watch *watch = events[i].data.ptr;
        if (watch->fd >= 0 && watch->events)
            watch->ready(watch->owner, events[i].events);
    }
}

bool loop_child_changed(void)
{
    bool changed = child_changed;
    child_changed = 0;
    return changed;
}

bool loop_asked_to_end(void)
{
    return asked_to_end;
}

void loop_leave_in_child(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &plain, NULL);
    sigaction(SIGTERM, &plain, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

void complain(const char *what, int error)
{
    char line[256];
    int length = error ? snprintf(line, sizeof line, "stn-guest: %s: %s\n", what, strerror(error))
                       : snprintf(line, sizeof line, "stn-guest: %s\n", what);
    if (length > 0 && write(2, line, length < (int)sizeof line ? (size_t)length : sizeof line - 1) < 0)
        return; /* nobody listens, and there is nobody else to tell */
}
