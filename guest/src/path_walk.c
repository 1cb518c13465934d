#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "path.h"

#define LINKS_MAX 40
#define DEPTH_MAX 256

struct walker {
    int stack[DEPTH_MAX]; /* the root, and the directories on the way to here */
    int depth;
    int links;
    char rest[PATH_MAX]; /* what is still to be walked */
};

static int fail(int error)
{
    errno = error;
    return -1;
}

static void climb(struct walker *walker)
{
    close(walker->stack[walker->depth--]);
}

/* Puts the target of a link before the rest of the way. -1 where it leads out of the root, or round and round. */
static int expand(struct walker *walker, const char *name)
{
    char way[PATH_MAX];
    ssize_t length = readlinkat(walker->stack[walker->depth], name, way, sizeof way - 1);
    if (length < 0)
        return -1;
    way[length] = 0;
    if (way[0] == '/')
        return fail(EXDEV);
    if (++walker->links > LINKS_MAX)
        return fail(ELOOP);
    if ((size_t)length + 1 + strlen(walker->rest) >= sizeof way)
        return fail(ENAMETOOLONG);
    way[length] = '/';
    strcpy(way + length + 1, walker->rest);
    strcpy(walker->rest, way);
    return 0;
}

/* The next name off the way; false: it is at its end. */
static bool take_name(struct walker *walker, char *name)
{
    char *at = walker->rest + strspn(walker->rest, "/");
    size_t part = strcspn(at, "/");
    if (part == 0)
        return false;
    if (part > NAME_SIZE)
        part = NAME_SIZE; /* too long for every file system: the kernel says so */
    memcpy(name, at, part);
    name[part] = 0;
    at += part;
    memmove(walker->rest, at, strlen(at) + 1);
    return true;
}

static bool at_end(const struct walker *walker)
{
    return walker->rest[strspn(walker->rest, "/")] == 0;
}

static bool is_link(int directory, const char *name)
{
    struct stat status;
    return fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

/* 1: go on; 0: `*found` is it; -1 and errno. */
static int step(struct walker *walker, const char *name, int flags, int *found)
{
    int here = walker->stack[walker->depth];
    bool last = at_end(walker);
    if (strcmp(name, ".") == 0 && !last)
        return 1;
    if (strcmp(name, "..") == 0) {
        if (walker->depth == 0)
            return fail(EXDEV);
        climb(walker);
        if (!last)
            return 1;
        here = walker->stack[walker->depth];
        name = ".";
    }
    if (!(last && flags & O_NOFOLLOW) && is_link(here, name))
        return expand(walker, name) < 0 ? -1 : 1;
    /* What has become a link since then is refused. */
    int next = open_no_link(here, name, last ? flags : O_PATH | O_DIRECTORY);
    if (next < 0)
        return -1;
    if (last) {
        *found = next;
        return 0;
    }
    if (walker->depth + 1 == DEPTH_MAX) {
        close(next);
        return fail(ENAMETOOLONG);
    }
    walker->stack[++walker->depth] = next;
    return 1;
}

int walk_beneath(int root, const char *path, int flags)
{
    struct walker walker = {.stack = {root}};
    char name[NAME_SIZE + 1];
    int found = -1, going = 1;
    if (strlen(path) >= sizeof walker.rest)
        return fail(ENAMETOOLONG);
    strcpy(walker.rest, path);
    while (going == 1) {
        if (!take_name(&walker, name)) /* a link to nothing but slashes */
            strcpy(name, ".");
        going = step(&walker, name, flags, &found);
    }
    int error = errno;
    while (walker.depth > 0)
        climb(&walker);
    return going < 0 ? fail(error) : found;
}
