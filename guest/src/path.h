/* Names below a root that user code may change at any moment: resolved by the kernel, beneath the root or not at all. */
#ifndef PATH_H
#define PATH_H

#include "guest.h"

#define NAME_SIZE 256

/* Pure: the path without `.`, empty components and slashes at its end; "." for the root. False: refused. */
bool path_normalise(const char *path, char *out, size_t size);

/* Pure: whether a tree may bring a link at `path` with this target: absolute, or one that does not climb out. */
bool link_is_let_in(const char *path, const char *target);

/* As openat(). -1 and errno; EXDEV where it leads out of the root. O_NOFOLLOW in `flags` is about the last name. */
int open_beneath(int root, const char *path, int flags);

/* What open_beneath() does for kernels without openat2: one name after the other, by descriptors of directories it came
 * through; a link is read, never followed by the kernel. */
int walk_beneath(int root, const char *path, int flags);

/* One name in a directory, for the same kernels. ELOOP or ENOTDIR where it is a link. */
int open_no_link(int directory, const char *name, int flags);

/* As open_beneath() for one name in a directory, which must be no link and no mount. */
int open_here(int directory, const char *name, int flags);

/* These end the applet where it is refused. */
int open_root(const char *root);
int open_path(int root, const char *path, int flags);

struct place {
    int directory;
    char name[NAME_SIZE];
};

/* The directory that holds the last name of `path`. The root itself has no such name: refused. */
struct place find_place(int root, const char *path, bool make_parents);

/* As renameat(); `exclusive`: -1 and EEXIST where something of that name is there. */
int rename_place(struct place *from, struct place *to, bool exclusive);

/* Empties and removes a directory of any depth, with one descriptor at a time. */
void remove_tree(int parent, const char *name);

#endif
