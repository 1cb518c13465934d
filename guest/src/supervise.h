/* The process between the guest and a command: it owns the command's tree, reports its end and ends what is left. */
#ifndef SUPERVISE_H
#define SUPERVISE_H

#include "guest.h"

/* What main(2) of the command needs, prepared in the guest. */
struct command {
    const char *cwd;
    char **argv;
    char **envp;
    int stdio[3];
};

/* The guest's word to the supervisor: one number, sent to the whole tree. */
struct tree_order {
    int32_t signal;
    int32_t then_continue; /* a stopped process hears SIGTERM only when it runs */
};

/* The supervisor's words to the guest, one packet each. */
struct tree_report {
    uint32_t kind; /* 0: started, `value` is the main pid; else an ending_kind */
    int32_t value;
    uint32_t ended_children;
    uint64_t user_us;
    uint64_t system_us;
    uint64_t max_rss_kib;
};

/* The two kinds of containment differ only in these. */
struct containment {
    int (*enter)(void);              /* in the supervisor, before the command starts; 0 or an errno */
    void (*signal)(int number);      /* to the whole tree */
    uint32_t (*end)(void);           /* kills and reaps all that is left; how many were still running */
};

extern const struct containment contain_pidns;
extern const struct containment contain_subreaper;

_Noreturn void supervise(const struct containment *containment, const struct command *command, int control);

/* The steps into a PID namespace, for the probe to try: 0 or an errno. */
int pidns_mount_proc(void);
int pidns_cover_settings(void);
int pidns_cover_keys(void);

#endif
