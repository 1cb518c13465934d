/* Arguments, stdin and stdout of applets. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "applet.h"

static uint8_t pending[32768];
static size_t pending_length;

/* An EPIPE means that the guest is gone, and nobody is left to tell. */
void write_all(int fd, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    while (length) {
        ssize_t wrote = write(fd, at, length);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            applet_fail_errno("cannot write");
        at += wrote;
        length -= (size_t)wrote;
    }
}

size_t read_some(int fd, void *bytes, size_t room)
{
    for (;;) {
        ssize_t got = read(fd, bytes, room);
        if (got >= 0)
            return (size_t)got;
        if (errno != EINTR)
            applet_fail_errno("cannot read what is sent");
    }
}

void widen_pipe(int fd)
{
    fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES);
}

void put_flush(void)
{
    size_t length = pending_length;
    pending_length = 0;
    write_all(1, pending, length);
}

void put_bytes(const void *bytes, size_t length)
{
    if (length > sizeof pending - pending_length)
        put_flush();
    if (length > sizeof pending) {
        write_all(1, bytes, length);
        return;
    }
    memcpy(pending + pending_length, bytes, length);
    pending_length += length;
}

void put_text(const char *text)
{
    put_bytes(text, strlen(text) + 1);
}

const uint8_t *source_peek(struct source *source, size_t *length)
{
    while (source->start == source->end) {
        size_t got = read_some(0, source->buffer, sizeof source->buffer);
        if (got == 0)
            return NULL;
        source->start = 0;
        source->end = got;
    }
    if (*length > source->end - source->start)
        *length = source->end - source->start;
    return source->buffer + source->start;
}

void source_took(struct source *source, size_t length)
{
    sha256_add(&source->hash, source->buffer + source->start, length);
    source->start += length;
}

mode_t parse_mode(const char *text)
{
    char *end;
    unsigned long mode = strtoul(text, &end, 8);
    if (!*text || *end || mode > 07777)
        applet_fail(EINVAL, "not a mode");
    return (mode_t)(mode & 0777);
}

int64_t parse_int(const char *text)
{
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (!*text || *end || errno)
        applet_fail(EINVAL, "not a number");
    return value;
}

void random_name(char name[24])
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        applet_fail_errno("no randomness");
    snprintf(name, 24, ".stn-%016llx", (unsigned long long)number);
}
