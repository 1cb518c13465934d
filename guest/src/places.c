/* What a box made of volumes lacks when it starts: its places belong to root, and no program of the image may be needed
 * to change that. Done once, as the first thing; the capability for it is given up before anybody is served. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest.h"
#include "loop.h"

static int give(const char *path)
{
    struct stat facts;
    if (lstat(path, &facts) < 0)
        return errno;
    /* Done in an earlier life of the sandbox; the user may have closed it since, even to us. */
    if (facts.st_uid == guest.uid && facts.st_gid == guest.gid)
        return 0;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fchown(fd, guest.uid, guest.gid) < 0 ? errno : 0;
    close(fd);
    return error;
}

static int link_to(const char *path, const char *target)
{
    if (symlink(target, path) < 0)
        return errno == EEXIST ? 0 : errno;
    return lchown(path, guest.uid, guest.gid) < 0 ? errno : 0;
}

static void give_up(int capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    if (syscall(SYS_capget, &header, data) < 0)
        return;
    data[0].effective &= ~(1u << capability);
    data[0].permitted &= ~(1u << capability);
    data[0].inheritable &= ~(1u << capability);
    if (syscall(SYS_capset, &header, data) < 0)
        complain("CAP_CHOWN stays", errno);
}

bool places_prepare(void)
{
    int error = 0;
    if (!guest.link && guest.owned_count == 0)
        return true;
    if (guest.link)
        error = link_to(guest.link, guest.link_target);
    for (int i = 0; !error && i < guest.owned_count; i++)
        error = give(guest.owned[i]);
    if (error)
        complain("a place of the box cannot be given to its user", error);
    give_up(CAP_CHOWN);
    return !error;
}
