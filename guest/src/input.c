/* Stdin of a process: straight into its pipe, and into a buffer only when that is full. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "process.h"
#include "wire.h"

void input_release(struct process *process)
{
    struct input *input = &process->input;
    watch_close(&input->pipe);
    if (input->buffer)
        munmap(input->buffer, STDIN_WINDOW);
    input->buffer = NULL;
    input->length = input->done = 0;
}

static void lose(struct process *process)
{
    process->input.lost = true;
    input_release(process);
}

/* How much the pipe took; false when its reader is gone. */
static bool push(struct process *process, const uint8_t *bytes, uint32_t length, uint32_t *taken)
{
    *taken = 0;
    while (*taken < length) {
        ssize_t wrote = write(process->input.pipe.fd, bytes + *taken, length - *taken);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0 && errno == EAGAIN)
            break;
        if (wrote < 0) {
            lose(process);
            return false;
        }
        *taken += (uint32_t)wrote;
        process->input.taken += (uint64_t)wrote;
    }
    return true;
}

static void pipe_ready(void *owner, uint32_t events)
{
    struct process *process = owner;
    struct input *input = &process->input;
    uint32_t taken;
    if (events & EPOLLERR) {
        lose(process);
        return;
    }
    if (!push(process, input->buffer + input->done, input->length - input->done, &taken))
        return;
    input->done += taken;
    if (input->done < input->length)
        return;
    input->done = input->length = 0;
    watch_set(&input->pipe, 0);
    if (input->at_end)
        input_release(process);
}

static bool keep(struct input *input, const uint8_t *bytes, uint32_t length)
{
    if (!input->buffer) {
        void *memory = mmap(NULL, STDIN_WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return false;
        madvise(memory, STDIN_WINDOW, MADV_DONTFORK);
        input->buffer = memory;
    }
    if (input->done) {
        memmove(input->buffer, input->buffer + input->done, input->length - input->done);
        input->length -= input->done;
        input->done = 0;
    }
    memcpy(input->buffer + input->length, bytes, length);
    input->length += length;
    return true;
}

/* False when the host sent more than the window allows: all of it is dropped. */
bool input_write(struct process *process, const uint8_t *bytes, uint32_t length)
{
    struct input *input = &process->input;
    uint32_t waiting = input->length - input->done, taken = 0;
    if (input->pipe.fd < 0)
        return true; /* STDIN_CLOSED has been said, or will be */
    if (input->at_end || length > STDIN_WINDOW - waiting)
        return false;
    if (waiting == 0 && !push(process, bytes, length, &taken))
        return true;
    if (taken == length)
        return true;
    input->pipe.ready = pipe_ready;
    input->pipe.owner = process;
    if (!keep(input, bytes + taken, length - taken) || !watch_set(&input->pipe, EPOLLOUT))
        lose(process);
    return true;
}

void input_close(struct process *process)
{
    process->input.at_end = true;
    if (process->input.length == 0)
        input_release(process);
}

void input_rewind(struct process *process)
{
    struct input *input = &process->input;
    if (input->pipe.fd < 0)
        return;
    input->length = input->done = 0;
    input->at_end = false;
    if (input->buffer)
        watch_set(&input->pipe, 0);
}
