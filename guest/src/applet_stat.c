/* The small ones: stat, mkdir, rename, chmod, space. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "applet.h"
#include "entry.h"
#include "path.h"

int applet_stat(char **argv)
{
    int root = open_root(argv[0]);
    int fd = open_path(root, argv[1], O_PATH | (has_flag(argv[2], 'f') ? 0 : O_NOFOLLOW));
    struct stat status;
    if (fstat(fd, &status) < 0)
        applet_fail_errno("cannot stat");
    /* The empty name reads the link that the descriptor itself is. */
    if (!entry_put(&status, fd, "", argv[1]))
        applet_fail_errno("cannot read the link");
    return 0;
}

/* By descriptor: the mode asked for, exactly, and never that of something else put in its place. */
static void set_mode(int directory, const char *name, mode_t mode)
{
    int fd = open_here(directory, name, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fchmod(fd, mode) < 0)
        applet_fail_errno("cannot set the mode");
    close(fd);
}

int applet_mkdir(char **argv)
{
    int root = open_root(argv[0]);
    bool parents = has_flag(argv[3], 'p');
    mode_t mode = parse_mode(argv[2]);
    char clean[8];
    if (parents && path_normalise(argv[1], clean, sizeof clean) && strcmp(clean, ".") == 0) {
        put_text("r");
        return 0;
    }
    struct place place = find_place(root, argv[1], parents);
    if (mkdirat(place.directory, place.name, 0700) == 0) {
        set_mode(place.directory, place.name, mode);
        put_text("c");
        return 0;
    }
    struct stat status;
    if (errno == EEXIST && parents && fstatat(place.directory, place.name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(status.st_mode)) {
        put_text("r");
        return 0;
    }
    if (errno == 0)
        errno = EEXIST;
    applet_fail_errno("cannot make the directory");
}

int applet_rename(char **argv)
{
    struct place from = find_place(open_root(argv[0]), argv[1], false);
    struct place to = find_place(open_root(argv[2]), argv[3], has_flag(argv[4], 'p'));
    if (rename_place(&from, &to, has_flag(argv[4], 'x')) < 0)
        applet_fail_errno("cannot rename");
    return 0;
}

int applet_chmod(char **argv)
{
    int root = open_root(argv[0]);
    mode_t mode = parse_mode(argv[2]);
    int fd = open_path(root, argv[1], O_PATH);
    struct stat status;
    if (fstat(fd, &status) < 0)
        applet_fail_errno("cannot stat");
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        applet_fail(NOT_REGULAR, "neither a file nor a directory");
    /* Through /proc: a file without read permission cannot be opened for fchmod(). */
    char name[40];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (chmod(name, mode) < 0) {
        /* gVisor knows no such names there. */
        int open_fd = errno == ENOENT ? open_path(root, argv[1], O_RDONLY) : -1;
        if (open_fd < 0 || fchmod(open_fd, mode) < 0)
            applet_fail_errno("cannot set the mode");
    }
    return 0;
}

int applet_space(char **argv)
{
    struct statvfs status;
    if (fstatvfs(open_root(argv[0]), &status) < 0)
        applet_fail_errno("cannot ask for the space");
    char text[64];
    snprintf(text, sizeof text, "%llu %llu", (unsigned long long)status.f_bavail * status.f_frsize,
             (unsigned long long)status.f_blocks * status.f_frsize);
    put_text(text);
    return 0;
}
