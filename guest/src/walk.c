#include "walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "applet.h"
#include "path.h"

int path_compare(const char *left, const char *right)
{
    while (*left && *left == *right) {
        left++;
        right++;
    }
    /* A slash ends a component, so it comes before every byte that goes on with it. */
    int a = *left == '/' ? 1 : *left ? (unsigned char)*left + 1 : 0;
    int b = *right == '/' ? 1 : *right ? (unsigned char)*right + 1 : 0;
    return a - b;
}

struct names {
    char **list;
    size_t count;
    size_t room;
    bool pruned;
};

static int by_bytes(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Keeps the first `wanted` names: each is worth a visit at least, so no others will be needed. */
static void prune(struct names *names, size_t wanted)
{
    qsort(names->list, names->count, sizeof *names->list, by_bytes);
    for (; names->count > wanted; names->count--) {
        free(names->list[names->count - 1]);
        names->pruned = true;
    }
}

static void add_name(struct names *names, const char *name)
{
    if (names->count == names->room) {
        names->room = names->room ? 2 * names->room : 64;
        char **list = realloc(names->list, names->room * sizeof *list);
        if (!list)
            applet_fail(ENOMEM, "too many names");
        names->list = list;
    }
    if (!(names->list[names->count++] = strdup(name)))
        applet_fail(ENOMEM, "too many names");
}

/* Whether nothing at or below `path` comes behind `after`. */
static bool is_past(const char *path, const char *after)
{
    size_t length = strlen(path);
    bool above = strncmp(path, after, length) == 0 && (after[length] == '/' || !after[length]);
    return !above && path_compare(path, after) < 0;
}

static void read_names(struct walk *walk, int directory, const char *prefix, struct names *names)
{
    char path[PATH_MAX];
    size_t wanted = walk->limit < 0 ? SIZE_MAX : (size_t)(walk->limit - walk->visited) + 2;
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing)
        applet_fail_errno("cannot list");
    struct dirent *entry;
    size_t length = strlen(prefix);
    memcpy(path, prefix, length);
    while (errno = 0, (entry = readdir(listing))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || length + strlen(name) >= sizeof path)
            continue;
        strcpy(path + length, name);
        if (*walk->after && is_past(path, walk->after))
            continue;
        add_name(names, name);
        if (wanted < SIZE_MAX / 4 && names->count > 2 * wanted + 4096)
            prune(names, wanted);
    }
    if (errno)
        applet_fail_errno("cannot list");
    closedir(listing);
    prune(names, wanted);
}

static void walk_directory(struct walk *walk, int directory, char *path, size_t length, int depth);

static void descend(struct walk *walk, int directory, const char *name, char *path, int depth)
{
    size_t length = strlen(path);
    if (depth + 1 >= WALK_DEPTH_MAX || length + 2 >= PATH_MAX)
        return;
    int below = open_here(directory, name, O_RDONLY | O_DIRECTORY);
    if (below < 0)
        return; /* a mount, or gone, or not ours to read */
    path[length] = '/';
    path[length + 1] = 0;
    walk_directory(walk, below, path, length + 1, depth + 1);
    path[length] = 0;
    close(below);
}

static void walk_directory(struct walk *walk, int directory, char *path, size_t length, int depth)
{
    struct names names = {0};
    struct stat status;
    read_names(walk, directory, path, &names);
    for (size_t i = 0; i < names.count && !walk->more; i++) {
        const char *name = names.list[i];
        strcpy(path + length, name);
        if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
            continue; /* it was removed meanwhile */
        if (!*walk->after || path_compare(path, walk->after) > 0) {
            if (walk->limit >= 0 && walk->visited >= walk->limit) {
                walk->more = true;
                break;
            }
            walk->visit(directory, name, path, &status);
            walk->visited++;
        }
        if (walk->recursive && S_ISDIR(status.st_mode))
            descend(walk, directory, name, path, depth);
    }
    path[length] = 0;
    /* Names that vanished meanwhile may have left fewer than were kept: the next page finds the others. */
    walk->more = walk->more || (names.pruned && walk->visited > 0);
    for (size_t i = 0; i < names.count; i++)
        free(names.list[i]);
    free(names.list);
}

void walk_tree(struct walk *walk, int directory)
{
    char path[PATH_MAX] = "";
    walk_directory(walk, directory, path, 0, 0);
}
