/* `stn-guest launch`: what must happen between the station and bwrap, and that no shell could do. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stdbool.h>
#include <sys/types.h>

#define LAUNCH_FAILED 125
#define LAUNCH_LIST_MAX 32
#define LAUNCH_GUARDS_MAX 4096
#define BOX_USER 1000

struct launch {
    const char *cgroups[LAUNCH_LIST_MAX];
    const char *rlimits[LAUNCH_LIST_MAX];
    const char *binds[LAUNCH_LIST_MAX];  /* NAME=SOURCE */
    const char *tmpfs[LAUNCH_LIST_MAX];  /* NAME=SIZE:INODES:MODE */
    const char *pins[LAUNCH_GUARDS_MAX];     /* in the folder */
    const char *protects[LAUNCH_GUARDS_MAX]; /* in the folder */
    int cgroup_count, rlimit_count, bind_count, tmpfs_count, pin_count, protect_count;
    const char *stage;
    const char *folder;   /* NAME=SOURCE */
    bool become;          /* root alone: be uid and gid for good */
    uid_t uid;
    gid_t gid;
    enum { USERS_AS_THEY_ARE, USERS_SHARED, USERS_SEPARATE } users;
    uid_t guest_uid;      /* what uid and gid 0 of the box are outside, with USERS_SEPARATE */
    gid_t guest_gid;
    int max_userns;       /* -1: as it is */
    int info_fd;          /* -1: none */
    int last_fd;          /* above it nothing is passed on; -1: all is */
    char **argv;
};

int launch_main(int argc, char **argv);

void launch_fail(const char *what, const char *which) __attribute__((noreturn));
bool launch_parse(struct launch *plan, int argc, char **argv);
void launch_enter_userns(const struct launch *plan);
void launch_stage(const struct launch *plan, uid_t owner);
int launch_open_folder(const char *source);
void launch_guard(const struct launch *plan, const char *folder);

#endif
