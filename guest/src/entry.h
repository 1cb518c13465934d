/* The entry of docs/guest-protocol.md: one name, as text. */
#ifndef ENTRY_H
#define ENTRY_H

#include <sys/stat.h>

#include "guest.h"

#define ENTRY_TEXT_MAX 4200 /* numbers and a path */

struct entry {
    char type; /* f, d, l, o; e: the end of a pack */
    mode_t mode;
    uint64_t size;
    int64_t mtime_ns;
    const char *path;
};

/* Pure. `text` ends in NUL; the path points into it. False: malformed. Special mode bits are dropped. */
bool entry_parse(const char *text, struct entry *entry);

char entry_type(mode_t mode);
/* "T MODE SIZE MTIME_NS NLINK " into `out`; its length. */
int entry_head(const struct stat *status, char out[96]);
/* To stdout, with the target if it is a link in `directory`. False: the link has vanished or changed meanwhile. */
bool entry_put(const struct stat *status, int directory, const char *name, const char *path);

#endif
