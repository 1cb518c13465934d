#include "process.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervise.h"
#include "tree.h"

#define ABANDON_US 5000000 /* a supervisor that has not ended its tree by then is killed itself */
#define ORPHANS_US 500000  /* so long the guest hunts what is left of it, before it looks after all others again */

struct process *processes;
static struct process *forgotten; /* freed in the next turn: events of this one may still name them */
uint32_t process_count;
uint32_t last_id;

struct process *process_by_id(uint32_t id)
{
    struct process *process = processes;
    while (process && process->id != id)
        process = process->next;
    return process;
}

struct process *process_by_pid(pid_t pid)
{
    struct process *process = processes;
    while (process && !(process->awaited && process->pid == pid))
        process = process->next;
    return process;
}

static struct process *process_new(uint32_t id, const struct record *record)
{
    struct process *process = calloc(1, sizeof *process), **end = &processes;
    if (!process)
        return NULL;
    process->id = id;
    process->applet = record->flags & RECORD_APPLET;
    process->on_full = record->on_full;
    process->grace_ms = record->grace_ms;
    process->output_limit = record->output_limit;
    process->started_at = now_us();
    process->timeout_at = record->timeout_ms ? process->started_at + 1000ull * record->timeout_ms : NEVER;
    process->kill_at = process->abandon_at = NEVER;
    process->control.fd = process->input.pipe.fd = -1;
    for (int i = 0; i < 2; i++) {
        process->streams[i].process = process;
        process->streams[i].pipe.fd = -1;
        process->streams[i].wanted = true; /* whoever starts it wants its output, from the beginning */
    }
    while (*end)
        end = &(*end)->next;
    *end = process;
    process_count++;
    return process;
}

bool process_start(uint32_t id, const struct record *record)
{
    struct process *process = process_new(id, record);
    if (!process)
        return false;
    int error = rings_open(process->rings, record->ring_bytes) ? spawn(process, record) : ENOMEM;
    if (error)
        process_tree_ended(process, (struct ending){.kind = ENDING_NO_MEANS, .value = error});
    return true;
}

void process_tree_ended(struct process *process, struct ending ending)
{
    if (process->life != LIFE_RUNNING)
        return;
    process->life = LIFE_DRAINING;
    process->ending = ending;
    process->ending.wall_us = now_us() - process->started_at;
    process->timeout_at = process->kill_at = process->abandon_at = NEVER;
    if (process->input.pipe.fd >= 0 && process->input.length)
        process->input.lost = true;
    input_release(process);
    watch_close(&process->control);
    output_drain(process);
}

static void order(struct process *process, int number, bool then_continue)
{
    struct tree_order word = {number, then_continue};
    if (process->life != LIFE_RUNNING || !process->awaited)
        return;
    if (process->applet)
        kill(process->pid, number);
    else if (send(process->control.fd, &word, sizeof word, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && number == SIGKILL)
        kill(process->pid, SIGKILL); /* it does not listen: the kernel, or the reaping, ends the tree */
}

void process_signal(struct process *process, int number)
{
    if (number == SIGKILL)
        process->killed = true;
    order(process, number, false);
}

static void kill_tree(struct process *process)
{
    process->kill_at = NEVER;
    process->abandon_at = now_us() + ABANDON_US;
    process->killed = true;
    order(process, SIGKILL, false);
}

/* The first reason stays; a later call can only make the grace shorter. */
void process_cancel(struct process *process, uint32_t reason, uint32_t grace_ms)
{
    if (process->life != LIFE_RUNNING || process->abandon_at != NEVER)
        return;
    if (process->reason == REASON_NONE) {
        process->reason = reason;
        process->timeout_at = NEVER;
        if (grace_ms)
            order(process, SIGTERM, true);
    }
    uint64_t kill_at = now_us() + 1000ull * grace_ms;
    if (kill_at < process->kill_at)
        process->kill_at = kill_at;
    if (grace_ms == 0)
        kill_tree(process);
}

void process_forget(struct process *process)
{
    struct process **link = &processes;
    while (*link != process)
        link = &(*link)->next;
    *link = process->next;
    process_count--;
    rings_close(process->rings);
    input_release(process);
    process->next = forgotten;
    forgotten = process;
}

static void free_forgotten(void)
{
    while (forgotten) {
        struct process *next = forgotten->next;
        free(forgotten);
        forgotten = next;
    }
}

static bool is_ours(pid_t pid)
{
    return process_by_pid(pid) != NULL;
}

/* EXIT promises that none is left: as long as one cannot be ended it is not sent, and the guest answers meanwhile. */
static void end_orphans(struct process *process, uint64_t again_us)
{
    uint32_t ended;
    bool gone = tree_end_by(is_ours, now_us() + ORPHANS_US, &ended);
    if (ended > process->ending.ended_children)
        process->ending.ended_children = ended;
    process->abandon_at = now_us() + again_us;
    if (gone)
        process_tree_ended(process, process->ending);
}

static void abandon(struct process *process)
{
    process->abandon_at = NEVER;
    if (process->awaited)
        kill(process->pid, SIGKILL);
    else
        end_orphans(process, ABANDON_US);
}

uint64_t processes_tick(void)
{
    uint64_t now = now_us(), next = NEVER;
    free_forgotten();
    for (struct process *p = processes; p; p = p->next) {
        if (p->life != LIFE_RUNNING)
            continue;
        if (p->timeout_at <= now)
            process_cancel(p, REASON_TIMED_OUT, p->grace_ms);
        if (p->kill_at <= now)
            kill_tree(p);
        if (p->abandon_at <= now)
            abandon(p);
        if (p->life != LIFE_RUNNING) {
            next = now; /* its EXIT is sent at the end of a turn: there must be one */
            continue;
        }
        next = p->timeout_at < next ? p->timeout_at : next;
        next = p->kill_at < next ? p->kill_at : next;
        next = p->abandon_at < next ? p->abandon_at : next;
    }
    return next;
}

static uint64_t microseconds(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

/* A child ended whose tree has not been reported: an applet, or a supervisor that was ended from outside its plan. */
static void child_ended(struct process *process, int status, const struct rusage *usage)
{
    struct ending ending = {
        .user_us = microseconds(usage->ru_utime),
        .system_us = microseconds(usage->ru_stime),
        .max_rss_kib = (uint64_t)usage->ru_maxrss,
    };
    if (process->applet) {
        ending.kind = WIFEXITED(status) ? ENDING_EXITED : ENDING_SIGNALLED;
        ending.value = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    } else {
        ending.kind = process->killed ? ENDING_SIGNALLED : ENDING_LOST;
        ending.value = process->killed ? SIGKILL : 0;
        if (!(guest.capabilities & CAN_PIDNS)) { /* its children are the guest's own now */
            process->ending = ending;
            end_orphans(process, ORPHANS_US);
            return;
        }
    }
    process_tree_ended(process, ending);
}

void processes_reap(void)
{
    int status;
    struct rusage usage;
    pid_t pid;
    bool reporting_only = !(guest.capabilities & (CAN_PIDNS | CAN_SUBREAPER));
    while ((pid = wait4(-1, &status, WNOHANG | WUNTRACED, &usage)) > 0) {
        struct process *process = process_by_pid(pid);
        if (!process)
            continue; /* an orphan that nobody owns */
        if (WIFSTOPPED(status)) {
            if (!process->applet)
                kill(pid, SIGKILL); /* only user code of our own uid stops a supervisor: it could hold the tree for ever */
            continue;
        }
        process->awaited = false;
        if (process->control.fd >= 0)
            process->control.ready(process, 0); /* its last word may still wait there */
        if (process->life == LIFE_RUNNING)
            child_ended(process, status, &usage);
        else if (reporting_only)
            tree_end(is_ours);
    }
}

void processes_end_all(void)
{
    for (struct process *p = processes; p; p = p->next)
        if (p->awaited)
            kill(p->pid, SIGKILL);
    if (getpid() == 1)
        return; /* the kernel ends all when this process ends */
    tree_end(NULL);
}
