/* Renaming that replaces nothing, also where the kernel or a file system cannot do that in one step (gVisor, NFS). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "path.h"

#define RENAME_NOREPLACE_ 1u

static int rename_by_link(struct place *from, struct place *to)
{
    struct stat status;
    if (fstatat(from->directory, from->name, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    if (S_ISDIR(status.st_mode)) {
        /* No link to a directory can be made: another's empty directory of that name, made just now, would be lost. */
        if (fstatat(to->directory, to->name, &status, AT_SYMLINK_NOFOLLOW) == 0)
            errno = EEXIST;
        else if (errno == ENOENT)
            return renameat(from->directory, from->name, to->directory, to->name);
        return -1;
    }
    if (linkat(from->directory, from->name, to->directory, to->name, 0) < 0)
        return -1;
    return unlinkat(from->directory, from->name, 0);
}

int rename_place(struct place *from, struct place *to, bool exclusive)
{
    if (!exclusive)
        return renameat(from->directory, from->name, to->directory, to->name);
    long done =
        syscall(SYS_renameat2, from->directory, from->name, to->directory, to->name, RENAME_NOREPLACE_);
    if (done < 0 && (errno == EINVAL || errno == ENOSYS))
        return rename_by_link(from, to);
    return (int)done;
}
