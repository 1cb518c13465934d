/* The one epoll set, the clock and the signals of PID 1. */
#ifndef LOOP_H
#define LOOP_H

#include "guest.h"

struct watch {
    int fd; /* -1: closed; its events of this turn are dropped */
    uint32_t events; /* 0: not in the epoll set */
    void (*ready)(void *owner, uint32_t events);
    void *owner;
};

/* Monotonic microseconds. */
uint64_t now_us(void);
#define NEVER UINT64_MAX

void loop_open(void);
/* Wants these events from now on; 0 takes the descriptor out, so that a hang-up cannot spin. */
bool watch_set(struct watch *watch, uint32_t events);
void watch_close(struct watch *watch);

/* Waits until `deadline` at most and calls what is ready. */
void loop_turn(uint64_t deadline);

/* Whether the signal came since the last question. */
bool loop_child_changed(void);
bool loop_asked_to_end(void);

/* Undoes loop_open()'s signal handling in a forked child that does not exec: TERM ends it. */
void loop_leave_in_child(void);

/* One line on stderr. `error` is an errno or 0. */
void complain(const char *what, int error);

#endif
