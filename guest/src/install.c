/* `stn-guest install DIR`: the program copies itself to DIR/guest, whole or not at all, for root alone. An engine's archive
 * call can neither replace a file in one step nor close the root of a volume; what is open to all boxes could be locked
 * by the code of one and seen by another's. */
#include "install.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop.h"

static int copy(int from, int to)
{
    char block[65536];
    for (;;) {
        ssize_t got = read(from, block, sizeof block);
        if (got == 0)
            return fchmod(to, 0500) < 0 || fsync(to) < 0 ? errno : 0;
        for (ssize_t done = 0; done < got;) {
            ssize_t wrote = write(to, block + done, (size_t)(got - done));
            if (wrote < 0)
                return errno;
            done += wrote;
        }
        if (got < 0)
            return errno;
    }
}

static int install(const char *directory)
{
    char fresh[32];
    int at = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (at < 0 || from < 0)
        return errno;
    snprintf(fresh, sizeof fresh, ".new-%d-%ld", (int)getpid(), (long)now_us());
    int to = openat(at, fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0500);
    int error = to < 0 ? errno : copy(from, to);
    if (!error && renameat(at, fresh, at, "guest") < 0)
        error = errno;
    if (error)
        unlinkat(at, fresh, 0);
    else if (fchmod(at, 0700) < 0 || fsync(at) < 0)
        error = errno;
    return error;
}

int install_main(int argc, char **argv)
{
    if (argc != 2) {
        complain("usage: stn-guest install DIR", 0);
        return 2;
    }
    int error = install(argv[1]);
    if (error)
        complain("the guest cannot be installed", error);
    return error ? 1 : 0;
}
