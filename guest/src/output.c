/* From the pipes of processes into their rings, and from the rings to the session. */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "process.h"
#include "session.h"
#include "wire.h"

#define CHUNK_MAX (PAYLOAD_MAX - 12)
#define READ_MAX 65536u

static struct ring *ring_of(struct stream *stream)
{
    return &stream->process->rings[stream - stream->process->streams];
}

static uint64_t total(const struct process *process)
{
    return process->rings[0].end + process->rings[1].end;
}

/* Beyond the limit bytes are thrown away, so that the process does not block before it is ended. */
static ssize_t read_beyond_limit(struct stream *stream)
{
    uint8_t dropped[4096];
    ssize_t got = read(stream->pipe.fd, dropped, sizeof dropped);
    if (got > 0 && stream->process->life == LIFE_RUNNING)
        process_cancel(stream->process, REASON_OUTPUT_LIMIT, stream->process->grace_ms);
    else if (got > 0 && stream->process->reason == REASON_NONE)
        stream->process->reason = REASON_OUTPUT_LIMIT;
    return got;
}

static ssize_t read_into_ring(struct stream *stream)
{
    struct process *process = stream->process;
    struct ring *ring = ring_of(stream);
    size_t room;
    uint8_t *space = ring_space(ring, &room);
    if (room > READ_MAX)
        room = READ_MAX;
    if (process->output_limit && room > process->output_limit - total(process))
        room = (size_t)(process->output_limit - total(process));
    ssize_t got = read(stream->pipe.fd, space, room);
    if (got > 0)
        ring_commit(ring, (size_t)got);
    return got;
}

/* What the ring has no room for is lost, and the reason says so. */
static void cut(struct stream *stream)
{
    struct process *process = stream->process;
    if (process->reason == REASON_NONE)
        process->reason = REASON_OUTPUT_LIMIT;
    watch_close(&stream->pipe);
}

/* False when the ring is full and the process must wait. */
static bool make_room(struct stream *stream)
{
    struct process *process = stream->process;
    struct ring *ring = ring_of(stream);
    if (ring_room(ring) > 0)
        return true;
    if (process->on_full == ON_FULL_DROP_OLDEST) {
        size_t part = ring->capacity < READ_MAX ? ring->capacity : READ_MAX;
        ring_forget(ring, ring->start + part);
        return true;
    }
    if (process->on_full == ON_FULL_KILL && process->life == LIFE_RUNNING)
        process_cancel(process, REASON_OUTPUT_LIMIT, process->grace_ms);
    else if (process->on_full == ON_FULL_KILL)
        cut(stream);
    return false;
}

/* One read. False when there is nothing more to get for now; the pipe is then closed or waited for as is right. */
static bool fill(struct stream *stream)
{
    struct process *process = stream->process;
    bool over = process->output_limit && total(process) >= process->output_limit;
    if (stream->pipe.fd < 0)
        return false;
    if (!over && !make_room(stream)) {
        watch_set(&stream->pipe, 0);
        return false;
    }
    ssize_t got = over ? read_beyond_limit(stream) : read_into_ring(stream);
    if (got > 0 || (got < 0 && errno == EINTR))
        return true;
    /* With the tree empty, an empty pipe stays empty, whoever else may hold its other end. */
    if (got == 0 || errno != EAGAIN || process->life != LIFE_RUNNING)
        watch_close(&stream->pipe);
    return false;
}

static void settle(struct process *process)
{
    if (process->life == LIFE_DRAINING && process->streams[0].pipe.fd < 0 && process->streams[1].pipe.fd < 0)
        process->life = LIFE_ENDED;
}

static void pipe_ready(void *owner, uint32_t events)
{
    (void)events;
    struct stream *stream = owner;
    /* One read a turn: a loud process must not hold up the others. */
    fill(stream);
    settle(stream->process);
}

void output_watch(struct process *process)
{
    for (int i = 0; i < 2; i++) {
        struct stream *stream = &process->streams[i];
        stream->pipe.ready = pipe_ready;
        stream->pipe.owner = stream;
        if (!watch_set(&stream->pipe, EPOLLIN))
            watch_close(&stream->pipe);
    }
}

void output_drain(struct process *process)
{
    for (int i = 0; i < 2; i++)
        while (fill(&process->streams[i]))
            continue;
    settle(process);
}

void output_acknowledge(struct process *process, int index, uint64_t offset)
{
    struct stream *stream = &process->streams[index];
    struct ring *ring = &process->rings[index];
    if (offset > ring->end)
        offset = ring->end;
    if (!stream->wanted) {
        stream->wanted = true;
        stream->sent = offset;
    }
    if (stream->sent < offset)
        stream->sent = offset;
    ring_forget(ring, offset);
    if (process->life == LIFE_DRAINING)
        output_drain(process);
    else if (stream->pipe.fd >= 0 && ring_room(ring) > 0)
        watch_set(&stream->pipe, EPOLLIN);
}

static void tell_gap(struct process *process, int index)
{
    struct stream *stream = &process->streams[index];
    uint8_t payload[20];
    put64(put64(put32(payload, (uint32_t)index + 1), stream->sent), process->rings[index].start);
    stream->sent = process->rings[index].start;
    session_send(FRAME_GAP, process->id, payload, sizeof payload);
}

/* One frame of a stream, if there is one and it may be sent. */
static bool send_chunk(struct process *process, int index)
{
    struct stream *stream = &process->streams[index];
    struct ring *ring = &process->rings[index];
    if (!stream->wanted || !session_ready())
        return false;
    /* A program can be faster than its supervisor's word that it runs; the host hears of both in order. */
    if (process->life == LIFE_RUNNING && !process->shown_pid)
        return false;
    if (stream->sent < ring->start)
        tell_gap(process, index);
    if (stream->sent == ring->end || session_credit() <= 12)
        return false;
    size_t count;
    const uint8_t *bytes = ring_at(ring, stream->sent, &count);
    if (count > CHUNK_MAX)
        count = CHUNK_MAX;
    if (count > session_credit() - 12)
        count = (size_t)(session_credit() - 12);
    session_output(process->id, (uint32_t)index + 1, stream->sent, bytes, (uint32_t)count);
    stream->sent += count;
    return true;
}

static void tell_input(struct process *process)
{
    struct input *input = &process->input;
    uint8_t payload[8];
    if (input->taken != input->told_taken) {
        input->told_taken = input->taken;
        put64(payload, input->taken);
        session_send(FRAME_STDIN_ACK, process->id, payload, sizeof payload);
    }
    if (input->lost && !input->told_lost) {
        input->told_lost = true;
        session_send(FRAME_STDIN_CLOSED, process->id, NULL, 0);
    }
}

static void tell_started(struct process *process)
{
    if (!process->shown_pid || process->told_started)
        return;
    uint8_t payload[4];
    process->told_started = true;
    put32(payload, (uint32_t)process->shown_pid);
    session_send(FRAME_STARTED, process->id, payload, sizeof payload);
}

static void tell_exit(struct process *process)
{
    const struct ending *ending = &process->ending;
    if (process->life != LIFE_ENDED || process->told_exit)
        return;
    for (int i = 0; i < 2; i++)
        if (!process->streams[i].wanted || process->streams[i].sent != process->rings[i].end)
            return;
    uint8_t payload[64], *at = payload;
    at = put32(put32(at, ending->kind), (uint32_t)ending->value);
    at = put32(put32(at, process->reason), ending->ended_children);
    at = put64(put64(at, process->rings[0].end), process->rings[1].end);
    at = put64(put64(at, ending->user_us), ending->system_us);
    at = put64(put64(at, ending->max_rss_kib), ending->wall_us);
    process->told_exit = true;
    session_send(FRAME_EXIT, process->id, payload, (uint32_t)(at - payload));
}

/* Everything told here is a fact kept in the process, so a slow host costs no memory. */
void output_pump(void)
{
    static uint32_t turn;
    if (!session_ready())
        return;
    struct process *first = processes;
    for (struct process *p = processes; p; p = p->next) {
        if (p->streams[0].wanted || p->streams[1].wanted) {
            tell_started(p);
            tell_input(p);
        }
        if (p->id <= turn)
            first = p->next;
    }
    bool sent = true;
    while (sent && session_ready()) {
        sent = false;
        struct process *p = first ? first : processes;
        for (uint32_t n = process_count; n && session_ready(); n--) {
            for (int i = 0; i < 2; i++)
                sent = send_chunk(p, i) || sent;
            turn = p->id;
            p = p->next ? p->next : processes;
        }
        first = p;
    }
    for (struct process *p = processes; p && session_ready(); p = p->next)
        tell_exit(p);
}
