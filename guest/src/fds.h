/* Which descriptors a forked child keeps. Everything the guest opens is close-on-exec. */
#ifndef FDS_H
#define FDS_H

#include <stdbool.h>

/* Moves `keep` to number 3 and closes all others above 2: a supervisor must not hold another command's pipes. */
int fds_keep_only(int keep);

/* What the guest was started with (its socket, the station's lock) is nobody else's. */
void fds_inherit_none(void);

/* Remembers the highest number in use, for kernels without close_range. */
void fds_note(int fd);

bool fd_set_nonblocking(int fd);

#endif
