#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "applet.h"
#include "entry.h"
#include "path.h"

static void put_hex(const uint8_t digest[SHA256_SIZE])
{
    char text[2 * SHA256_SIZE + 1] = "";
    for (int i = 0; i < SHA256_SIZE; i++) {
        text[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    write_all(2, text, sizeof text);
}

/* Exactly as many bytes as were announced: a file that shrinks meanwhile is a failure, one that grows is cut. */
static void send(int fd, int64_t offset, int64_t left)
{
    static uint8_t buffer[PIPE_BYTES];
    struct sha256 hash;
    uint8_t digest[SHA256_SIZE];
    sha256_begin(&hash);
    widen_pipe(1);
    while (left > 0) {
        size_t part = left < (int64_t)sizeof buffer ? (size_t)left : sizeof buffer;
        ssize_t got = pread(fd, buffer, part, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            applet_fail_errno("cannot read");
        if (got == 0)
            applet_fail(EIO, "the file has shrunk");
        sha256_add(&hash, buffer, (size_t)got);
        write_all(1, buffer, (size_t)got);
        offset += got;
        left -= got;
    }
    sha256_end(&hash, digest);
    put_hex(digest);
}

int applet_read(char **argv)
{
    int64_t offset = parse_int(argv[2]), length = parse_int(argv[3]);
    if (offset < 0 || length < -1)
        applet_fail(EINVAL, "not a range");
    int fd = open_path(open_root(argv[0]), argv[1], O_RDONLY);
    struct stat status;
    if (fstat(fd, &status) < 0)
        applet_fail_errno("cannot stat");
    if (!S_ISREG(status.st_mode))
        applet_fail(NOT_REGULAR, "not a regular file");
    char head[96];
    int head_length = entry_head(&status, head);
    write_all(2, head, (size_t)head_length);
    write_all(2, argv[1], strlen(argv[1]) + 1);
    int64_t left = status.st_size > offset ? status.st_size - offset : 0;
    send(fd, offset, length >= 0 && length < left ? length : left);
    return 0;
}
