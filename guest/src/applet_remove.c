/* Removing trees of any depth, with one directory open at a time, beside the top. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "applet.h"
#include "path.h"

/* What lies deeper is moved up to the top first: a kernel that keeps everything above an open directory open too
 * (gVisor) would run out of descriptors. */
#define DEPTH_MAX 64

struct level {
    dev_t device; /* of the directory that holds `name` */
    ino_t inode;
    char *name;
};

static struct level *levels;
static size_t level_count, level_room;
static uint64_t removed;
static int top = -1; /* of the tree */

static void push(int directory, const char *name)
{
    struct stat status;
    if (level_count == level_room) {
        level_room = level_room ? 2 * level_room : 64;
        struct level *more = realloc(levels, level_room * sizeof *levels);
        if (!more)
            applet_fail(ENOMEM, "too deep");
        levels = more;
    }
    char *copy = strdup(name);
    if (!copy || fstat(directory, &status) < 0)
        applet_fail_errno("cannot descend");
    levels[level_count++] = (struct level){status.st_dev, status.st_ino, copy};
}

/* A directory moved meanwhile would lead elsewhere by `..`: there, nothing is removed. */
static int climb(int directory)
{
    struct stat status;
    struct level *level = &levels[level_count - 1];
    int parent = openat(directory, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (parent < 0 || fstat(parent, &status) < 0)
        applet_fail_errno("cannot climb");
    if (status.st_dev != level->device || status.st_ino != level->inode)
        applet_fail(EBUSY, "the tree was moved meanwhile");
    close(directory);
    return parent;
}

/* A file, a link or an empty directory. The errno is that of the call which fits what it is. */
static bool remove_name(int directory, const char *name)
{
    if (unlinkat(directory, name, 0) < 0 &&
        ((errno != EISDIR && errno != EPERM) || unlinkat(directory, name, AT_REMOVEDIR) < 0))
        return false;
    removed++;
    return true;
}

/* Removes what can be removed at once; the name of a directory that must be emptied first, or "". */
static void sweep(int directory, char full[NAME_SIZE])
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;
    full[0] = 0;
    if (!listing)
        applet_fail_errno("cannot list");
    while (!full[0] && (errno = 0, entry = readdir(listing))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (remove_name(directory, name))
            continue;
        if (errno == ENOTEMPTY || errno == EEXIST)
            strcpy(full, name);
        else if (errno != ENOENT)
            applet_fail_errno("cannot remove");
    }
    closedir(listing);
}

static int enter(int directory, const char *name)
{
    int below = open_here(directory, name, O_RDONLY | O_DIRECTORY);
    if (below < 0 && errno == EXDEV)
        errno = EBUSY; /* a mount inside: never crossed */
    if (below < 0)
        applet_fail_errno("cannot open a directory");
    push(directory, name);
    if (level_count == 1) {
        if (top >= 0)
            close(top);
        top = fcntl(below, F_DUPFD_CLOEXEC, 0);
    }
    return below;
}

/* False where a directory cannot be moved, not being the user's to write: it is entered where it is. */
static bool lift(int directory, const char *name)
{
    char flat[24];
    random_name(flat);
    return renameat(directory, name, top, flat) == 0;
}

void remove_tree(int parent, const char *name)
{
    char full[NAME_SIZE];
    int directory = enter(parent, name);
    while (level_count) {
        sweep(directory, full);
        if (full[0]) {
            if (level_count > DEPTH_MAX && lift(directory, full))
                continue;
            int below = enter(directory, full);
            close(directory);
            directory = below;
            continue;
        }
        directory = climb(directory);
        struct level *level = &levels[--level_count];
        /* Filled again meanwhile: it is swept once more, as long as somebody fills it. */
        if (unlinkat(directory, level->name, AT_REMOVEDIR) == 0)
            removed++;
        else if (errno == ENOTEMPTY || errno == EEXIST)
            directory = enter(directory, level->name);
        else if (errno != ENOENT)
            applet_fail_errno("cannot remove");
        free(level->name);
    }
    close(directory);
}

static void remove_at(struct place place, bool recursive)
{
    if (remove_name(place.directory, place.name) || errno == ENOENT)
        return;
    if ((errno != ENOTEMPTY && errno != EEXIST) || !recursive)
        applet_fail_errno("cannot remove");
    remove_tree(place.directory, place.name);
}

int applet_remove(char **argv)
{
    char text[24], clean[4200];
    int root = open_root(argv[0]);
    if (!path_normalise(argv[1], clean, sizeof clean))
        applet_fail(PATH_REFUSED, "the path is refused");
    char *slash = strrchr(clean, '/');
    if (slash) {
        /* A missing directory above is a missing path. */
        *slash = 0;
        if (open_beneath(root, clean, O_PATH | O_DIRECTORY) < 0 && (errno == ENOENT || errno == ENOTDIR)) {
            put_text("0");
            return 0;
        }
    }
    remove_at(find_place(root, argv[1], false), has_flag(argv[2], 'r'));
    snprintf(text, sizeof text, "%llu", (unsigned long long)removed);
    put_text(text);
    return 0;
}
