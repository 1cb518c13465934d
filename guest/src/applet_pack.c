#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "applet.h"
#include "entry.h"
#include "path.h"
#include "walk.h"

static int64_t allowance; /* bytes of files that may still be sent; -1: any number */

/* The entry has promised the size: a file that shrinks under our hands makes the pack a failure. */
static void put_content(int fd, int64_t left)
{
    static uint8_t buffer[65536];
    while (left > 0) {
        ssize_t got = read(fd, buffer, left < (int64_t)sizeof buffer ? (size_t)left : sizeof buffer);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            applet_fail_errno("cannot read a file");
        if (got == 0)
            applet_fail(EIO, "a file has shrunk");
        put_bytes(buffer, (size_t)got);
        left -= got;
    }
}

static void visit_file(int directory, const char *name, const char *path)
{
    struct stat status;
    int fd = open_here(directory, name, O_RDONLY);
    if (fd < 0 && errno == ENOENT)
        return;
    if (fd < 0 || fstat(fd, &status) < 0)
        applet_fail_errno("cannot open a file");
    if (S_ISREG(status.st_mode)) {
        if (allowance >= 0 && status.st_size > allowance)
            applet_fail(EFBIG, "the tree is larger than allowed");
        allowance -= allowance >= 0 ? status.st_size : 0;
        entry_put(&status, -1, NULL, path);
        put_content(fd, status.st_size);
    }
    close(fd);
}

static void visit(int directory, const char *name, const char *path, const struct stat *status)
{
    /* A file is told by what was opened, not by what was there a moment before. */
    if (S_ISREG(status->st_mode))
        visit_file(directory, name, path);
    else
        entry_put(status, directory, name, path);
}

int applet_pack(char **argv)
{
    allowance = parse_int(argv[2]);
    int directory = open_path(open_root(argv[0]), argv[1], O_RDONLY | O_DIRECTORY);
    struct walk walk = {.recursive = true, .limit = -1, .after = "", .visit = visit};
    walk_tree(&walk, directory);
    put_text("e");
    return 0;
}
