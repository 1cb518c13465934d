#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fds.h"
#include "loop.h"
#include "wire.h"

#define CONNECTIONS 4
#define QUEUE_HIGH 65536u    /* above it no OUTPUT is added */
#define QUEUE_MAX (1u << 20) /* above it nothing is read, so that PINGs cannot fill the memory */
#define ACCEPT_PAUSE_US 100000

struct connection {
    struct watch in;
    struct watch out; /* the same descriptor as `in` on a socket: then not in the epoll set itself */
    struct frame_parser parser;
    uint8_t *queue; /* bytes that the stream did not take yet */
    size_t queued;
    size_t queue_room;
    uint64_t since;
};

static struct connection connections[CONNECTIONS];
static struct connection *current; /* whose HELLO was the newest */
static struct connection *speaking;
static struct watch listener = {.fd = -1};
static uint64_t accept_again_at = NEVER;
static uint64_t credit;
static bool gone;

static void close_connection(struct connection *connection)
{
    if (connection->out.fd != connection->in.fd)
        watch_close(&connection->out);
    watch_close(&connection->in);
    connection->out.fd = -1;
    if (connection != speaking) /* else the frame being handled lies in it */
        free(connection->parser.buffer);
    free(connection->queue);
    connection->queue = NULL;
    connection->queued = connection->queue_room = 0;
    if (current == connection)
        current = NULL;
    if (guest.fd < 0)
        gone = true; /* nobody can ever speak on closed stdio again */
}

/* What to wait for: to read unless the other side does not read us, to write while bytes wait. */
static void update_interest(struct connection *connection)
{
    uint32_t in = connection->queued < QUEUE_MAX ? EPOLLIN : 0;
    uint32_t out = connection->queued ? EPOLLOUT : 0;
    bool ok;
    if (connection->in.fd == connection->out.fd)
        ok = watch_set(&connection->in, in | out);
    else
        ok = watch_set(&connection->in, in) && watch_set(&connection->out, out);
    if (!ok)
        close_connection(connection);
}

static void flush(struct connection *connection)
{
    size_t sent = 0;
    while (sent < connection->queued) {
        ssize_t wrote = write(connection->out.fd, connection->queue + sent, connection->queued - sent);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0 && errno != EAGAIN) {
            close_connection(connection);
            return;
        }
        if (wrote < 0)
            break;
        sent += (size_t)wrote;
    }
    connection->queued -= sent;
    memmove(connection->queue, connection->queue + sent, connection->queued);
    update_interest(connection);
}

static bool enqueue(struct connection *connection, const void *bytes, size_t length)
{
    if (connection->queued + length > connection->queue_room) {
        size_t room = connection->queued + length + 4096;
        uint8_t *queue = realloc(connection->queue, room);
        if (!queue)
            return false;
        connection->queue = queue;
        connection->queue_room = room;
    }
    memcpy(connection->queue + connection->queued, bytes, length);
    connection->queued += length;
    return true;
}

/* Straight to the stream if nothing waits; what it does not take is queued. */
static void send_parts(struct iovec *parts, int count)
{
    struct connection *connection = current;
    size_t done = 0;
    if (!connection)
        return;
    if (connection->queued == 0) {
        ssize_t wrote = writev(connection->out.fd, parts, count);
        if (wrote < 0 && errno != EAGAIN && errno != EINTR) {
            close_connection(connection);
            return;
        }
        done = wrote < 0 ? 0 : (size_t)wrote;
    }
    for (int i = 0; i < count; i++) {
        size_t skip = done < parts[i].iov_len ? done : parts[i].iov_len;
        done -= skip;
        if (skip < parts[i].iov_len &&
            !enqueue(connection, (uint8_t *)parts[i].iov_base + skip, parts[i].iov_len - skip)) {
            close_connection(connection); /* half a frame is out: only a new session can mend that */
            return;
        }
    }
    if (connection->queued)
        update_interest(connection);
}

void session_send(uint32_t type, uint32_t id, const uint8_t *payload, uint32_t length)
{
    uint8_t header[FRAME_HEADER];
    frame_header(header, type, id, length);
    struct iovec parts[2] = {{header, sizeof header}, {(void *)payload, length}};
    send_parts(parts, length ? 2 : 1);
}

void session_output(uint32_t id, uint32_t stream, uint64_t offset, const uint8_t *bytes, uint32_t length)
{
    uint8_t header[FRAME_HEADER + 12];
    frame_header(header, FRAME_OUTPUT, id, length + 12);
    put64(put32(header + FRAME_HEADER, stream), offset);
    struct iovec parts[2] = {{header, sizeof header}, {(void *)bytes, length}};
    credit -= length + 12;
    send_parts(parts, 2);
}

void session_error(uint32_t id, int code, const char *text)
{
    uint8_t payload[256];
    size_t length = strnlen(text, sizeof payload - 5);
    memcpy(put32(payload, (uint32_t)code), text, length);
    payload[4 + length] = 0;
    session_send(FRAME_ERROR, id, payload, (uint32_t)(5 + length));
}

bool session_ready(void)
{
    return current && current->queued < QUEUE_HIGH;
}

uint64_t session_credit(void)
{
    return credit;
}

void session_add_credit(uint32_t bytes)
{
    credit += bytes;
}

void session_begin(uint32_t first_credit)
{
    for (int i = 0; i < CONNECTIONS; i++)
        if (&connections[i] != speaking && connections[i].in.fd >= 0 && current == &connections[i])
            close_connection(&connections[i]);
    current = speaking;
    credit = first_credit;
}

static void read_frames(struct connection *connection)
{
    size_t room;
    uint8_t *space = frame_space(&connection->parser, &room);
    ssize_t got = read(connection->in.fd, space, room);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        close_connection(connection);
        return;
    }
    frame_commit(&connection->parser, (size_t)got);
    struct frame frame;
    speaking = connection;
    while (connection->in.fd >= 0 && frame_next(&connection->parser, &frame))
        if (frame.type == FRAME_HELLO || connection == current)
            dispatch(&frame);
    speaking = NULL;
    if (connection->in.fd < 0)
        free(connection->parser.buffer);
}

static void in_ready(void *owner, uint32_t events)
{
    struct connection *connection = owner;
    if (connection->out.fd == connection->in.fd && events & EPOLLOUT)
        flush(connection);
    if (connection->in.fd >= 0 && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        read_frames(connection);
}

static void out_ready(void *owner, uint32_t events)
{
    if (events & EPOLLERR)
        close_connection(owner);
    else
        flush(owner);
}

/* A free place, or that of the one that has kept silent for longest. */
static struct connection *place(void)
{
    struct connection *oldest = NULL;
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *candidate = &connections[i];
        if (candidate->in.fd < 0)
            return candidate;
        if (candidate != current && (!oldest || candidate->since < oldest->since))
            oldest = candidate;
    }
    close_connection(oldest);
    return oldest;
}

static bool connect_stream(int in, int out)
{
    uint8_t *buffer = malloc(FRAME_BUFFER);
    if (!buffer)
        return false;
    struct connection *connection = place();
    fds_note(in);
    fds_note(out);
    connection->in = (struct watch){.fd = in, .ready = in_ready, .owner = connection};
    connection->out = (struct watch){.fd = out, .ready = out_ready, .owner = connection};
    connection->since = now_us();
    frame_reset(&connection->parser, buffer);
    fd_set_nonblocking(in);
    fd_set_nonblocking(out);
    update_interest(connection);
    return true;
}

static void accept_ready(void *owner, uint32_t events)
{
    (void)owner;
    int fd = accept4(listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        if (!connect_stream(fd, fd))
            close(fd);
        return;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        /* The socket stays readable: look away for a moment instead of spinning. */
        watch_set(&listener, 0);
        accept_again_at = now_us() + ACCEPT_PAUSE_US;
    } else if (events & (EPOLLHUP | EPOLLERR) || errno == EINVAL || errno == EBADF) {
        gone = true;
    }
}

uint64_t session_tick(uint64_t now)
{
    if (accept_again_at <= now) {
        accept_again_at = NEVER;
        watch_set(&listener, EPOLLIN);
    }
    return accept_again_at;
}

bool session_gone(void)
{
    return gone;
}

bool session_open(void)
{
    for (int i = 0; i < CONNECTIONS; i++)
        connections[i].in.fd = connections[i].out.fd = -1;
    if (guest.fd >= 0) {
        listener = (struct watch){.fd = guest.fd, .ready = accept_ready};
        fcntl(guest.fd, F_SETFD, FD_CLOEXEC);
        fds_note(guest.fd);
        return fd_set_nonblocking(guest.fd) && watch_set(&listener, EPOLLIN);
    }
    int in = fcntl(0, F_DUPFD_CLOEXEC, 3), out = fcntl(1, F_DUPFD_CLOEXEC, 3);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (in < 0 || out < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
        return false;
    close(null);
    return connect_stream(in, out);
}
