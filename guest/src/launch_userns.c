/* The outer user namespace of a box.
 *
 * It is made even where bwrap makes one of its own, for two reasons. RLIMIT_NPROC is also counted against whoever made
 * the namespace, with the limit that held then: set before the first one, all boxes of a user share one count; set
 * inside it, each has its own. And only inside may an unprivileged user mount the sized tmpfs of the stage. */
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0)
        launch_fail("write", path);
}

static void write_map(pid_t pid, const char *kind, unsigned guest, unsigned user)
{
    char path[64], text[96];
    snprintf(path, sizeof path, "/proc/%d/%s_map", pid, kind);
    snprintf(text, sizeof text, "0 %u 1\n%d %u 1\n", guest, BOX_USER, user);
    write_file(path, text);
}

static void run_map_tool(const char *tool, pid_t pid, unsigned guest, unsigned user)
{
    char whom[16], outer_guest[16], inner_user[16], outer_user[16];
    snprintf(whom, sizeof whom, "%d", pid);
    snprintf(outer_guest, sizeof outer_guest, "%u", guest);
    snprintf(inner_user, sizeof inner_user, "%d", BOX_USER);
    snprintf(outer_user, sizeof outer_user, "%u", user);
    char *const argv[] = {(char *)tool, whom, "0", outer_guest, "1", inner_user, outer_user, "1", NULL};
    pid_t child = fork();
    if (child < 0)
        launch_fail("fork", tool);
    if (child == 0) {
        char *const env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
        execvpe(tool, argv, env);
        launch_fail("exec", tool);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "launch: %s refused the map\n", tool);
        exit(LAUNCH_FAILED);
    }
}

/* Two ids cannot be mapped from inside: a child that stayed outside does it, as root or by the setuid tools. */
static pid_t fork_mapper(const struct launch *plan, uid_t user, gid_t group, int *ready)
{
    int pipe_fds[2];
    pid_t parent = getpid();
    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        launch_fail("pipe", "");
    pid_t child = fork();
    if (child < 0)
        launch_fail("fork", "mapper");
    if (child > 0) {
        close(pipe_fds[0]);
        *ready = pipe_fds[1];
        return child;
    }
    char byte;
    close(pipe_fds[1]);
    if (read(pipe_fds[0], &byte, 1) != 1)
        _exit(LAUNCH_FAILED);
    if (geteuid() == 0) {
        write_map(parent, "uid", plan->guest_uid, user);
        write_map(parent, "gid", plan->guest_gid, group);
    } else {
        run_map_tool("newuidmap", parent, plan->guest_uid, user);
        run_map_tool("newgidmap", parent, plan->guest_gid, group);
    }
    _exit(0);
}

static void become(const struct launch *plan)
{
    if (setgroups(0, NULL) != 0 || setresgid(plan->gid, plan->gid, plan->gid) != 0 ||
        setresuid(plan->uid, plan->uid, plan->uid) != 0)
        launch_fail("become", "the box's user");
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* else /proc/self belongs to root, the maps too */
}

static void map_self(uid_t user, gid_t group)
{
    char text[48];
    write_file("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "%d %u 1\n", BOX_USER, user);
    write_file("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "%d %u 1\n", BOX_USER, group);
    write_file("/proc/self/gid_map", text);
}

static void wait_for_mapper(pid_t mapper, int ready)
{
    int status;
    if (write(ready, "", 1) != 1)
        launch_fail("write", "mapper");
    close(ready);
    if (waitpid(mapper, &status, 0) != mapper || status != 0)
        exit(LAUNCH_FAILED); /* the mapper has said why */
}

/* These counts of a user are shared by all its boxes and, where the station is no root, by the user's own programs. */
static void take_a_quarter(const char *of, const char *here)
{
    char text[24] = "";
    int from = open(of, O_RDONLY | O_CLOEXEC), to = open(here, O_WRONLY | O_CLOEXEC);
    long all = from >= 0 && read(from, text, sizeof text - 1) > 0 ? strtol(text, NULL, 10) : 0;
    if (all >= 4) {
        snprintf(text, sizeof text, "%ld", all / 4);
        if (to >= 0 && write(to, text, strlen(text)) < 0)
            fprintf(stderr, "launch: %s stays as it is\n", here);
    }
    close(from);
    close(to);
}

void launch_enter_userns(const struct launch *plan)
{
    uid_t user = plan->become ? plan->uid : geteuid();
    gid_t group = plan->become ? plan->gid : getegid();
    pid_t mapper = 0;
    int ready = -1;
    if (plan->users == USERS_SEPARATE)
        mapper = fork_mapper(plan, user, group, &ready);
    if (plan->become)
        become(plan);
    if (plan->users == USERS_AS_THEY_ARE)
        return;
    if (unshare(CLONE_NEWUSER) != 0)
        launch_fail("unshare", "user namespace");
    if (plan->users == USERS_SEPARATE)
        wait_for_mapper(mapper, ready);
    else
        map_self(user, group);
    take_a_quarter("/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances");
    take_a_quarter("/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches");
    if (plan->max_userns >= 0) {
        char text[16];
        snprintf(text, sizeof text, "%d", plan->max_userns);
        write_file("/proc/sys/user/max_user_namespaces", text);
    }
}
