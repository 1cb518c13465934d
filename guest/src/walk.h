/* A directory tree in the order of its names, with bounded memory and depth. */
#ifndef WALK_H
#define WALK_H

#include <sys/stat.h>

#include "guest.h"

#define WALK_DEPTH_MAX 512

struct walk {
    bool recursive;
    int64_t limit;     /* as many visits; then `more` is set if there are others. -1: no limit */
    const char *after; /* only paths behind it; "" for all */
    void (*visit)(int directory, const char *name, const char *path, const struct stat *status);
    bool more;
    int64_t visited;
};

/* Pure: the order of paths by the bytes of their components. */
int path_compare(const char *left, const char *right);

void walk_tree(struct walk *walk, int directory);

#endif
