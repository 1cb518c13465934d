#include "path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "applet.h"

#define RACES_MAX 64 /* openat2 says EAGAIN when a rename crosses its way */

bool path_normalise(const char *path, char *out, size_t size)
{
    size_t length = 0;
    if (*path == '/' || !*path || size < sizeof ".")
        return false;
    while (*path) {
        size_t part = strcspn(path, "/");
        if (part == 2 && path[0] == '.' && path[1] == '.')
            return false;
        if (part && !(part == 1 && path[0] == '.')) {
            if (length + part + 2 > size)
                return false;
            if (length)
                out[length++] = '/';
            memcpy(out + length, path, part);
            length += part;
        }
        path += part;
        path += strspn(path, "/");
    }
    if (!length)
        out[length++] = '.';
    out[length] = 0;
    return true;
}

/*
 * An absolute target is a name in the box, as /usr/bin/python3 in a venv: no primitive ever follows it. Of a relative
 * one only leading `..` are let in: they are counted from real directories. After a name, one could climb out of a link
 * of that name to where counting does not know.
 */
bool link_is_let_in(const char *path, const char *target)
{
    size_t depth = 0;
    bool named = false;
    for (const char *at = path; (at = strchr(at, '/')); at++)
        depth++;
    if (!*target || *target == '/')
        return *target;
    while (*target) {
        size_t part = strcspn(target, "/");
        bool up = part == 2 && target[0] == '.' && target[1] == '.';
        if (up && (named || depth-- == 0))
            return false;
        if (!up && part && !(part == 1 && target[0] == '.'))
            named = true;
        target += part;
        target += strspn(target, "/");
    }
    return true;
}

static int open_resolved(int directory, const char *path, int flags, uint64_t resolve)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), .resolve = resolve};
    if (flags & O_PATH)
        how.flags = (uint64_t)(flags | O_CLOEXEC);
    int fd = -1;
    for (int i = 0; i < RACES_MAX; i++) {
        fd = (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
        if (fd >= 0 || errno != EAGAIN)
            break;
    }
    return fd;
}

int open_beneath(int root, const char *path, int flags)
{
    if (guest.capabilities & CAN_OPENAT2)
        return open_resolved(root, path, flags, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
    return walk_beneath(root, path, flags);
}

int open_no_link(int directory, const char *name, int flags)
{
    struct stat status;
    /* gVisor follows a link where O_DIRECTORY stands beside O_NOFOLLOW. */
    bool folder = (flags & O_DIRECTORY) && !(flags & O_PATH);
    int wanted = folder ? flags & ~O_DIRECTORY : flags;
    if (!(flags & O_PATH))
        wanted |= O_NONBLOCK | O_NOCTTY;
    int fd = openat(directory, name, wanted | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || !folder || (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)))
        return fd;
    close(fd);
    errno = ENOTDIR;
    return -1;
}

int open_here(int directory, const char *name, int flags)
{
    if (guest.capabilities & CAN_OPENAT2)
        return open_resolved(directory, name, flags | O_NOFOLLOW,
                             RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV);
    struct stat here, there;
    int fd = open_no_link(directory, name, flags);
    if (fd >= 0 && (fstat(directory, &here) < 0 || fstat(fd, &there) < 0 || here.st_dev != there.st_dev)) {
        close(fd);
        errno = EXDEV;
        return -1;
    }
    return fd;
}

int open_root(const char *root)
{
    if (*root != '/')
        applet_fail(PATH_REFUSED, "the root is not an absolute directory");
    int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        applet_fail_errno("cannot open the root");
    return fd;
}

static _Noreturn void refuse_path(const char *text)
{
    if (errno == EXDEV)
        applet_fail(PATH_REFUSED, "the path leads out of its root");
    if (errno == ENXIO)
        applet_fail(NOT_REGULAR, "not a regular file");
    applet_fail_errno(text);
}

static void normalise_or_refuse(const char *path, char out[PATH_MAX])
{
    if (!path_normalise(path, out, PATH_MAX))
        applet_fail(PATH_REFUSED, "the path is refused");
}

int open_path(int root, const char *path, int flags)
{
    char clean[PATH_MAX];
    normalise_or_refuse(path, clean);
    int fd = open_beneath(root, clean, flags);
    if (fd < 0)
        refuse_path("cannot open");
    return fd;
}

static int open_directory(int root, const char *path)
{
    return open_beneath(root, path, O_PATH | O_DIRECTORY);
}

/* Makes the last directory of `path`, whose parent exists. Somebody else may make it first. */
static int make_directory(int root, char *path)
{
    char *slash = strrchr(path, '/');
    int parent = root;
    if (slash) {
        *slash = 0;
        parent = open_directory(root, path);
        *slash = '/';
    }
    if (parent < 0 || (mkdirat(parent, slash ? slash + 1 : path, 0755) < 0 && errno != EEXIST))
        return -1;
    if (parent != root)
        close(parent);
    return open_directory(root, path);
}

static int make_directories(int root, char *path)
{
    int fd = -1;
    for (char *end = path; end; ) {
        end = strchr(end, '/');
        if (end)
            *end = 0;
        fd = open_directory(root, path);
        if (fd < 0 && errno == ENOENT)
            fd = make_directory(root, path);
        if (end)
            *end++ = '/';
        if (fd < 0)
            return -1;
        if (end)
            close(fd);
    }
    return fd;
}

struct place find_place(int root, const char *path, bool make_parents)
{
    char clean[PATH_MAX];
    struct place place;
    normalise_or_refuse(path, clean);
    if (strcmp(clean, ".") == 0)
        applet_fail(PATH_REFUSED, "the root itself has no name");
    char *slash = strrchr(clean, '/');
    const char *name = slash ? slash + 1 : clean;
    if (strlen(name) >= NAME_SIZE)
        applet_fail(ENAMETOOLONG, "a name is too long");
    strcpy(place.name, name);
    place.directory = root;
    if (!slash)
        return place;
    *slash = 0;
    place.directory = make_parents ? make_directories(root, clean) : open_directory(root, clean);
    if (place.directory < 0)
        refuse_path("cannot open the directory");
    return place;
}
