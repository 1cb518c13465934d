/* What stays as it is in a folder of the user's. Other boxes, or programs of the user, may write the folder right now and
 * put a link where a directory was when the station looked: so each name is walked from a descriptor and without any link,
 * and a mount goes onto what was opened, never onto a name. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch.h"

/* For kernels without openat2: one name after the other. */
static int walk(int directory, const char *path)
{
    char name[256];
    int at = fcntl(directory, F_DUPFD_CLOEXEC, 0);
    while (at >= 0 && *path) {
        size_t part = strcspn(path, "/");
        if (part >= sizeof name) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(name, path, part);
        name[part] = '\0';
        path += part + strspn(path + part, "/");
        int next = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        struct stat facts;
        if (next >= 0 && (fstat(next, &facts) != 0 || S_ISLNK(facts.st_mode))) {
            errno = ELOOP;
            return -1;
        }
        close(at);
        at = next;
    }
    return at;
}

static int open_without_links(int directory, const char *path)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, /* with O_NOFOLLOW a last link would be opened itself */
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH};
    int fd;
    do
        fd = (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
    while (fd < 0 && errno == EAGAIN); /* a rename crossed its way */
    return fd < 0 && (errno == ENOSYS || errno == EPERM) ? walk(directory, path) : fd;
}

int launch_open_folder(const char *item)
{
    const char *source = strchr(item, '=');
    struct stat facts;
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = root < 0 || source == NULL || source[1] != '/' ? -1 : open_without_links(root, source + 2);
    if (fd < 0)
        launch_fail("open", item);
    if (fstat(fd, &facts) != 0 || !S_ISDIR(facts.st_mode)) {
        errno = ENOTDIR;
        launch_fail("open", item);
    }
    close(root);
    return fd;
}

static int open_name(int folder, const char *name, struct stat *facts)
{
    int fd = open_without_links(folder, name);
    if (fd < 0 || fstat(fd, facts) != 0)
        launch_fail("it changes while the box is made:", name);
    return fd;
}

/* Onto itself. */
static void pin(int folder, const char *name, struct stat *facts)
{
    char path[48];
    int fd = open_name(folder, name, facts);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (mount(path, path, NULL, MS_BIND | MS_REC, NULL) != 0)
        launch_fail("bind", name);
    close(fd);
}

static void protect(int folder, const char *name)
{
    char path[48];
    struct stat pinned, found;
    struct statvfs now;
    pin(folder, name, &pinned);
    int fd = open_name(folder, name, &found); /* now the root of the new mount, if it still lies there */
    if (found.st_dev != pinned.st_dev || found.st_ino != pinned.st_ino || fstatvfs(fd, &now) != 0) {
        errno = EBUSY;
        launch_fail("it changes while the box is made:", name);
    }
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV;
    if (now.f_flag & ST_NOEXEC)
        flags |= MS_NOEXEC;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (mount(NULL, path, NULL, flags, NULL) != 0) /* not a root of a mount: EINVAL */
        launch_fail("make read-only", name);
    close(fd);
}

void launch_guard(const struct launch *plan, const char *folder)
{
    struct stat facts;
    int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        launch_fail("open", folder);
    for (int i = 0; i < plan->pin_count; i++)
        pin(fd, plan->pins[i], &facts);
    for (int i = 0; i < plan->protect_count; i++)
        protect(fd, plan->protects[i]);
    close(fd);
}
