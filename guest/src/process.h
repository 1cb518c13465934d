/* A process as the host knows it: its rings, its stdin, its end. */
#ifndef PROCESS_H
#define PROCESS_H

#include "guest.h"
#include "loop.h"
#include "record.h"
#include "ring.h"

struct process;

struct stream {
    struct process *process;
    struct watch pipe;
    uint64_t sent;  /* the next offset for the session */
    bool wanted;    /* the session has named an offset */
};

struct input {
    struct watch pipe;
    uint8_t *buffer; /* STDIN_WINDOW bytes, once the pipe was full for the first time */
    uint32_t length;
    uint32_t done; /* bytes at the front of the buffer that the pipe has taken */
    uint64_t taken;
    uint64_t told_taken;
    bool at_end; /* the host has sent its end of file */
    bool lost;   /* the reader is gone */
    bool told_lost;
};

struct ending {
    uint32_t kind;
    int32_t value;
    uint32_t ended_children;
    uint64_t user_us;
    uint64_t system_us;
    uint64_t max_rss_kib;
    uint64_t wall_us;
};

enum life {
    LIFE_RUNNING,
    LIFE_DRAINING, /* the tree is empty, its pipes are not yet */
    LIFE_ENDED,
};

struct process {
    struct process *next;
    uint32_t id;
    enum life life;
    bool applet;
    bool awaited;      /* `pid` is a child that has not been reaped */
    pid_t pid;         /* the supervisor, or the applet itself */
    pid_t shown_pid;   /* 0 until the program runs */
    bool told_started;
    bool told_exit;
    uint32_t on_full;
    uint32_t grace_ms;
    uint64_t output_limit;
    uint64_t started_at;
    uint64_t timeout_at;
    uint64_t kill_at;    /* when patience ends after TERM */
    uint64_t abandon_at; /* when the supervisor itself is killed */
    bool killed;         /* KILL was ordered */
    uint32_t reason;
    struct watch control;
    struct ring rings[2];
    struct stream streams[2];
    struct input input;
    struct ending ending;
};

/* In the order of their ids, ended ones included. */
extern struct process *processes;
extern uint32_t process_count;
extern uint32_t last_id;

struct process *process_by_id(uint32_t id);
struct process *process_by_pid(pid_t pid);

/* Always leaves a process behind, an ended one if it could not be started; false only if there is no memory for it. */
bool process_start(uint32_t id, const struct record *record);
void process_signal(struct process *process, int number);
void process_cancel(struct process *process, uint32_t reason, uint32_t grace_ms);
void process_forget(struct process *process);

/* Acts on all deadlines that have passed; the next one. */
uint64_t processes_tick(void);
void processes_reap(void);
/* At the end of the guest: everything dies, and this returns when it has. */
void processes_end_all(void);

/* The tree is empty: `ending` is final but for the output that pipes still hold. */
void process_tree_ended(struct process *process, struct ending ending);

/* output.c */
void output_watch(struct process *process);
void output_drain(struct process *process);
void output_acknowledge(struct process *process, int stream, uint64_t offset);
/* Tells the session all that it wants to know and has room and credit for. */
void output_pump(void);

/* input.c */
bool input_write(struct process *process, const uint8_t *bytes, uint32_t length);
void input_close(struct process *process);
/* A new session sends again what the pipe has not taken. */
void input_rewind(struct process *process);
void input_release(struct process *process);

/* spawn.c: fills in pid, control, pipes; 0 or an errno. */
int spawn(struct process *process, const struct record *record);

#endif
