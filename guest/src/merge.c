#include "merge.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "applet.h"
#include "path.h"

/* Trees here are at most as deep as an archive may be, so recursion is bounded. */
typedef void (*meet)(int from, int into, const char *name);

static void for_each(int from, int into, meet act)
{
    int copy = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;
    if (!listing)
        applet_fail_errno("cannot list the staging directory");
    while ((entry = readdir(listing)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            act(from, into, entry->d_name);
    closedir(listing);
}

static bool is_directory(int directory, const char *name, bool *exists)
{
    struct stat status;
    *exists = fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (*exists && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode) && !S_ISLNK(status.st_mode))
        applet_fail(NOT_REGULAR, "something in the way is no file");
    return *exists && S_ISDIR(status.st_mode);
}

static void both(int from, int into, const char *name, void (*act)(int from, int into))
{
    int below_from = open_here(from, name, O_RDONLY | O_DIRECTORY);
    int below_into = open_here(into, name, O_RDONLY | O_DIRECTORY);
    if (below_from < 0 || below_into < 0)
        applet_fail_errno("cannot open a directory");
    act(below_from, below_into);
    close(below_from);
    close(below_into);
}

static void check_one(int from, int into, const char *name)
{
    bool exists;
    bool new_is_directory = is_directory(from, name, &exists);
    bool old_is_directory = is_directory(into, name, &exists);
    if (!exists)
        return;
    if (new_is_directory != old_is_directory)
        applet_fail(new_is_directory ? ENOTDIR : EISDIR, "a directory and a file have one name");
    if (new_is_directory)
        both(from, into, name, merge_check);
}

void merge_check(int from, int into)
{
    for_each(from, into, check_one);
}

static void copy_mode(int from, int into, const char *name)
{
    struct stat status;
    int fd = open_here(into, name, O_RDONLY | O_DIRECTORY);
    if (fstatat(from, name, &status, AT_SYMLINK_NOFOLLOW) < 0 || fd < 0 || fchmod(fd, status.st_mode & 0777) < 0)
        applet_fail_errno("cannot set a mode");
    close(fd);
}

static void move_one(int from, int into, const char *name)
{
    bool exists;
    if (is_directory(into, name, &exists)) {
        both(from, into, name, merge_move);
        copy_mode(from, into, name);
        if (unlinkat(from, name, AT_REMOVEDIR) < 0)
            applet_fail_errno("cannot remove a staging directory");
    } else if (renameat(from, name, into, name) < 0) {
        applet_fail_errno("cannot put a file in its place");
    }
}

void merge_move(int from, int into)
{
    for_each(from, into, move_one);
}
