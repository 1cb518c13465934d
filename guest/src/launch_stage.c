/* The stage: one tmpfs over an existing directory, in a mount namespace of the box's own, that holds the sized tmpfs of
 * the box and binds of all it needs. The box's user need not be able to walk to the sources (a state directory below
 * /root), and both places of the workspace can be one tmpfs, with a bound on its files too. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch.h"

static void target_of(const struct launch *plan, const char *item, char *target, size_t size)
{
    const char *equals = strchr(item, '=');
    if (equals == NULL || equals == item)
        launch_fail("no NAME= in", item);
    int used = snprintf(target, size, "%s/%.*s", plan->stage, (int)(equals - item), item);
    if (used < 0 || (size_t)used >= size)
        launch_fail("too long", item);
}

static int open_source(const char *item)
{
    const char *source = strchr(item, '=');
    int fd = source == NULL ? -1 : open(source + 1, O_PATH | O_CLOEXEC);
    if (fd < 0)
        launch_fail("open", item);
    return fd;
}

static void make_target(int source, const char *target)
{
    struct stat facts;
    if (fstat(source, &facts) != 0)
        launch_fail("stat", target);
    if (S_ISDIR(facts.st_mode)) {
        if (mkdir(target, 0755) != 0)
            launch_fail("mkdir", target);
        return;
    }
    int fd = open(target, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0)
        launch_fail("create", target);
    close(fd);
}

static void bind_one(const struct launch *plan, const char *item, int source)
{
    char target[4200], from[48];
    target_of(plan, item, target, sizeof target);
    make_target(source, target);
    snprintf(from, sizeof from, "/proc/self/fd/%d", source);
    if (mount(from, target, NULL, MS_BIND | MS_REC, NULL) != 0)
        launch_fail("bind", item);
    close(source);
}

static void mount_tmpfs(const char *target, const char *values, uid_t owner)
{
    char size[32], inodes[32], mode[8], data[160];
    if (sscanf(values, "%31[0-9]:%31[0-9]:%7[0-7]", size, inodes, mode) != 3)
        launch_fail("not SIZE:INODES:MODE", values);
    snprintf(data, sizeof data, "size=%s,nr_inodes=%s,mode=%s,uid=%u,gid=%u", size, inodes, mode, owner, owner);
    if (mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, data) != 0)
        launch_fail("mount tmpfs", target);
}

static void bind_folder(const struct launch *plan, int source)
{
    char target[4200];
    bind_one(plan, plan->folder, source);
    target_of(plan, plan->folder, target, sizeof target);
    launch_guard(plan, target);
}

void launch_stage(const struct launch *plan, uid_t owner)
{
    int sources[LAUNCH_LIST_MAX], folder = -1;
    char target[4200];
    if (plan->stage == NULL)
        return;
    if (unshare(CLONE_NEWNS) != 0)
        launch_fail("unshare", "mount namespace");
    /* slave, not private: what is unmounted on the machine goes here too, and is not kept busy by a box */
    if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) != 0)
        launch_fail("make slave", "/");
    for (int i = 0; i < plan->bind_count; i++) /* before the stage may hide them */
        sources[i] = open_source(plan->binds[i]);
    if (plan->folder != NULL)
        folder = launch_open_folder(plan->folder);
    if (mount("stage", plan->stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=128,mode=755") != 0)
        launch_fail("mount the stage on", plan->stage);
    for (int i = 0; i < plan->bind_count; i++)
        bind_one(plan, plan->binds[i], sources[i]);
    if (plan->folder != NULL)
        bind_folder(plan, folder);
    for (int i = 0; i < plan->tmpfs_count; i++) {
        target_of(plan, plan->tmpfs[i], target, sizeof target);
        if (mkdir(target, 0755) != 0)
            launch_fail("mkdir", target);
        mount_tmpfs(target, strchr(plan->tmpfs[i], '=') + 1, owner);
    }
}
