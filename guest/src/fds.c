#include "fds.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whoever starts a guest hands it its socket and a lock, by low numbers. */
#define INHERITED_MAX 64

static int highest = 16;

void fds_note(int fd)
{
    if (fd > highest)
        highest = fd;
}

int fds_keep_only(int keep)
{
    if (keep > 3)
        keep = dup3(keep, 3, O_CLOEXEC);
    if (syscall(SYS_close_range, keep < 0 ? 3u : 4u, ~0u, 0) < 0)
        /* Only as far as needed: in gVisor a loop to 1024 costs more than the whole command. */
        for (int fd = keep < 0 ? 3 : 4; fd <= highest; fd++)
            close(fd);
    return keep;
}

void fds_inherit_none(void)
{
    /* Before Linux 5.9 there is no such call, and before 5.11 no such flag. */
    if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        for (int fd = 3; fd <= INHERITED_MAX; fd++)
            fcntl(fd, F_SETFD, FD_CLOEXEC);
}

bool fd_set_nonblocking(int fd)
{
    return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0;
}
