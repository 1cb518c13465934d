/* F02, K08, K10, K14: files of the machine, and what the kernel shows as files. */
#include "attack.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static int writable_groups;

static int group_file(const char *path, const struct stat *found, int kind, struct FTW *where)
{
    (void)found;
    static const char *const names[] = {
        "release_agent", "notify_on_release", "cgroup.procs", "tasks", "memory.limit_in_bytes", "memory.max",
        "pids.max", "devices.allow", "cpu.max", "cpu.cfs_quota_us", "cgroup.subtree_control",
    };
    if (kind != FTW_F || where->level > 6) return 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(path + where->base, names[i]) != 0) continue;
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0) continue;
        writable_groups++;
        close(fd);
    }
    return writable_groups >= 100; /* enough said */
}

void settings(int argc, char **argv)
{
    (void)argc, (void)argv;
    static const char *const files[] = {
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/sysrq", "/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/binfmt_misc/register", "/proc/sys/user/max_user_namespaces", "/proc/sys/net/ipv4/ip_forward",
        "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/1/oom_score_adj", "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/module/kernel/parameters/panic",
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) opened(files[i], O_WRONLY);
    nftw("/sys/fs/cgroup", group_file, 16, FTW_PHYS);
    judged("files of control groups that open for writing", writable_groups, writable_groups > 0);
}

static void device(const char *what, mode_t kind, dev_t number)
{
    /* Removed before anything could use it. */
    int made = mknod("attack-device", kind | 0600, number);
    call(what, made);
    if (made == 0) {
        opened("attack-device", O_RDONLY);
        unlink("attack-device");
    }
}

void devices(int argc, char **argv)
{
    (void)argc, (void)argv;
    device("mknod(memory)", S_IFCHR, makedev(1, 1));
    device("mknod(log)", S_IFCHR, makedev(1, 11));
    device("mknod(disk)", S_IFBLK, makedev(254, 0));
    static const char *const files[] = {
        "/dev/mem", "/dev/port", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda",
        "/dev/nvme0n1", "/dev/loop0", "/dev/loop-control", "/dev/dm-0", "/dev/mapper/control", "/dev/vsock",
        "/dev/vhost-net", "/dev/vhost-vsock", "/dev/uinput", "/dev/userfaultfd", "/dev/btrfs-control", "/dev/console",
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) opened(files[i], O_RDONLY);
}

/* What must be empty: whether a byte of it can be read that is not a zero address or a heading. */
static void content(const char *path)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    long got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    bool harm = got > 0;
    if (harm && strstr(path, "kallsyms")) {
        text[got] = 0;
        harm = strncmp(text, "0000000000000000", 16) != 0;
    }
    judged(path, got, harm);
    if (fd >= 0) close(fd);
}

static void folder(const char *path)
{
    DIR *found = opendir(path);
    long entries = found ? 0 : -1;
    for (struct dirent *entry; found && (entry = readdir(found));) entries += entry->d_name[0] != '.';
    judged(path, entries, entries > 0);
    if (found) closedir(found);
}

void readable(int argc, char **argv)
{
    static const char *const files[] = {
        "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/kallsyms",
        "/proc/vmallocinfo", "/proc/slabinfo", "/proc/kpagecount", "/sys/kernel/debug/sched/debug",
        "/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/product_name",
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) content(files[i]);
    /* What is read there is gone for whoever keeps the log. */
    if (mild(argc, argv)) opened("/proc/kmsg", O_RDONLY);
    else content("/proc/kmsg");
    folder("/sys/firmware");
    folder("/sys/kernel/debug");
}

static void by(const char *what, const char *before, const char *path, int flags)
{
    char whole[PATH_MAX];
    int length = snprintf(whole, sizeof whole, "%s%s", before, path);
    int fd = length < (int)sizeof whole ? open(whole, flags | O_NONBLOCK | O_CLOEXEC | O_NOCTTY) : -1;
    judged(what, fd < 0 ? -1 : 0, fd >= 0);
    if (fd >= 0) close(fd);
}

/* outside PATH: an absolute one, of a file outside; and leaves a link to it behind, for the file tools. */
void outside(int argc, char **argv)
{
    static const char up[] = "../../../../../../../../../../../../../../../../../../../..";
    const char *path = argc > 0 ? argv[0] : "/etc/shadow", *link = "attack-link";
    by("read", "", path, O_RDONLY);
    by("write", "", path, O_WRONLY);
    by("read by ..", up, path, O_RDONLY);
    by("read by /proc/1/root", "/proc/1/root", path, O_RDONLY);
    by("read by /proc/1/cwd", "/proc/1/cwd/", up, O_RDONLY | O_DIRECTORY);
    by("read by /proc/self/root", "/proc/self/root", path, O_RDONLY);
    unlink(link);
    told("link", symlink(path, link));
    by("read by a link", "", link, O_RDONLY);
}
