/* What each frame of the host does. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "process.h"
#include "session.h"
#include "wire.h"

#define WANTED_SIZE 20u
#define LISTED_SIZE 52u

static struct {
    uint32_t id; /* 0: none under way */
    uint8_t *bytes;
    size_t length;
    uint32_t refused; /* an id whose record was too long: the rest of it is not a record */
} assembly;

static void assembly_drop(void)
{
    free(assembly.bytes);
    assembly.bytes = NULL;
    assembly.length = 0;
    assembly.id = 0;
}

/* 0 or the errno to answer with. */
static int assembly_add(const struct frame *frame)
{
    if (assembly.id != frame->id)
        assembly_drop();
    if (assembly.length + frame->length > RECORD_MAX)
        return E2BIG;
    uint8_t *bytes = realloc(assembly.bytes, assembly.length + frame->length + 1);
    if (!bytes)
        return ENOMEM;
    assembly.id = frame->id;
    assembly.bytes = bytes;
    memcpy(bytes + assembly.length, frame->payload, frame->length);
    assembly.length += frame->length;
    return 0;
}

static void start(const struct frame *frame, bool last)
{
    struct record record;
    int error = 0;
    if (frame->id != 0 && frame->id == assembly.refused)
        return;
    if (frame->id == 0 || frame->id <= last_id)
        error = EEXIST;
    if (!error)
        error = assembly_add(frame);
    if (error && error != EEXIST && !last)
        assembly.refused = frame->id;
    if (!error && !last)
        return;
    if (!error && process_count >= PROCESSES_MAX)
        error = EAGAIN;
    if (!error)
        error = record_parse(&record, assembly.bytes, assembly.length);
    if (!error) {
        last_id = frame->id;
        if (!process_start(frame->id, &record))
            error = ENOMEM;
        record_free(&record);
    }
    if (error)
        session_error(frame->id, error, "not started: the record or its id is refused");
    if (assembly.id == frame->id)
        assembly_drop();
}

static void want_all(const uint8_t *wanted, uint32_t count)
{
    for (struct process *p = processes; p; p = p->next) {
        p->streams[0].wanted = p->streams[1].wanted = false;
        p->told_exit = false;
        p->told_started = p->shown_pid != 0; /* HELLO_ACK has told it */
        input_rewind(p);
        p->input.told_taken = p->input.taken;
        p->input.told_lost = false;
    }
    for (uint32_t i = 0; i < count; i++, wanted += WANTED_SIZE) {
        struct process *process = process_by_id(get32(wanted));
        for (int stream = 0; process && stream < 2; stream++) {
            uint64_t offset = get64(wanted + 4 + 8 * stream), end = process->rings[stream].end;
            /* What the host has, it has acknowledged: that word may have been lost with the connection. */
            output_acknowledge(process, stream, offset);
            process->streams[stream].wanted = true;
            process->streams[stream].sent = offset < end ? offset : end;
        }
    }
}

static uint8_t *list_process(uint8_t *at, const struct process *process)
{
    at = put32(at, process->id);
    at = put32(at, process->life == LIFE_ENDED ? 2 : 1);
    at = put32(at, (uint32_t)process->shown_pid);
    at = put64(at, process->input.taken);
    for (int stream = 0; stream < 2; stream++)
        at = put64(put64(at, process->rings[stream].start), process->rings[stream].end);
    return at;
}

static void hello(const struct frame *frame)
{
    const uint8_t *payload = frame->payload;
    uint32_t count = get32(payload + 24);
    uint32_t version = get32(payload + 16);
    if (count > (frame->length - HELLO_FIXED) / WANTED_SIZE)
        return; /* not ours to guess what was meant; the host sends it again */
    size_t size = NONCE_SIZE + 16 + process_count * (size_t)LISTED_SIZE + sizeof GUEST_VERSION;
    uint8_t *answer = malloc(size), *at = answer;
    if (!answer)
        return;
    session_begin(get32(payload + 20));
    memcpy(at, payload, NONCE_SIZE);
    at = put32(at + NONCE_SIZE, version < PROTOCOL_VERSION ? version : PROTOCOL_VERSION);
    at = put32(put32(at, guest.capabilities), last_id);
    at = put32(at, process_count);
    for (struct process *p = processes; p; p = p->next)
        at = list_process(at, p);
    memcpy(at, GUEST_VERSION, sizeof GUEST_VERSION);
    session_send(FRAME_HELLO_ACK, 0, answer, (uint32_t)size);
    free(answer);
    assembly_drop();
    want_all(payload + HELLO_FIXED, count);
}

static void feed(const struct frame *frame, struct process *process)
{
    if (frame->length == 0)
        input_close(process);
    else if (!input_write(process, frame->payload, frame->length))
        session_error(frame->id, ENOBUFS, "stdin beyond the window, or after its end");
}

static void acknowledge(const struct frame *frame, struct process *process)
{
    uint32_t stream = get32(frame->payload);
    if (stream == 1 || stream == 2)
        output_acknowledge(process, (int)stream - 1, get64(frame->payload + 4));
    else
        session_error(frame->id, EINVAL, "no such stream");
}

static void to_process(const struct frame *frame, struct process *process)
{
    switch (frame->type) {
    case FRAME_STDIN:
        feed(frame, process);
        break;
    case FRAME_SIGNAL: {
        uint32_t number = get32(frame->payload);
        if (number > 0 && number < _NSIG)
            process_signal(process, (int)number);
        else
            session_error(frame->id, EINVAL, "no such signal");
        break;
    }
    case FRAME_CANCEL: {
        uint32_t reason = get32(frame->payload + 4);
        if (reason >= REASON_CANCELLED && reason <= REASON_OUTPUT_LIMIT)
            process_cancel(process, reason, get32(frame->payload));
        else
            session_error(frame->id, EINVAL, "no such reason");
        break;
    }
    case FRAME_ACK:
        acknowledge(frame, process);
        break;
    default: /* FORGET */
        if (process->life == LIFE_ENDED)
            process_forget(process);
        else
            session_error(frame->id, EBUSY, "it has not ended");
    }
}

/* The smallest payload that each type of frame can have. */
static uint32_t least_length(uint32_t type)
{
    switch (type) {
    case FRAME_SIGNAL:
    case FRAME_CREDIT:
        return 4;
    case FRAME_CANCEL:
        return 8;
    case FRAME_ACK:
        return 12;
    default:
        return 0;
    }
}

void dispatch(const struct frame *frame)
{
    if (frame->length < least_length(frame->type)) {
        session_error(frame->id, EINVAL, "the frame is too short");
        return;
    }
    switch (frame->type) {
    case FRAME_HELLO:
        hello(frame);
        return;
    case FRAME_START:
    case FRAME_START_PART:
        start(frame, frame->type == FRAME_START);
        return;
    case FRAME_CREDIT:
        session_add_credit(get32(frame->payload));
        return;
    case FRAME_PING:
        session_send(FRAME_PONG, frame->id, frame->payload, frame->length < 48 ? frame->length : 48);
        return;
    case FRAME_STDIN:
    case FRAME_SIGNAL:
    case FRAME_CANCEL:
    case FRAME_ACK:
    case FRAME_FORGET:
        break;
    default:
        session_error(frame->id, ENOSYS, "no such frame");
        return;
    }
    struct process *process = process_by_id(frame->id);
    if (process)
        to_process(frame, process);
    else if (frame->type != FRAME_ACK && frame->type != FRAME_FORGET)
        session_error(frame->id, ESRCH, "no such process"); /* the other two may cross with its end */
}
