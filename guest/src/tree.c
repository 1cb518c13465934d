#include "tree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"

#define PATIENCE_US 500000 /* for processes that cannot stop, being deep in the kernel */

struct tree {
    pid_t *pids;
    size_t count;
    size_t room;
};

static void tree_add(struct tree *tree, pid_t pid)
{
    if (tree->count == tree->room) {
        size_t room = tree->room ? 2 * tree->room : 256;
        pid_t *pids = realloc(tree->pids, room * sizeof *pids);
        if (!pids)
            return; /* the next scan finds it */
        tree->pids = pids;
        tree->room = room;
    }
    tree->pids[tree->count++] = pid;
}

static ssize_t read_proc(pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t length = 0;
    ssize_t got;
    while (length < size - 1 && (got = read(fd, text + length, size - 1 - length)) > 0)
        length += (size_t)got;
    close(fd);
    text[length] = 0;
    return (ssize_t)length;
}

/* State and parent from /proc/PID/stat, read from behind the name, which may contain anything. */
static char state_of(pid_t pid, pid_t *parent)
{
    char text[512], state = 0;
    int ppid = 0;
    if (read_proc(pid, "stat", text, sizeof text) <= 0)
        return 0;
    const char *behind = strrchr(text, ')');
    if (!behind || sscanf(behind + 1, " %c %d", &state, &ppid) != 2)
        return 0;
    if (parent)
        *parent = ppid;
    return state;
}

static void add_children(struct tree *tree, pid_t pid, pid_t thread, tree_spares spares)
{
    static char text[1 << 16];
    char name[64];
    snprintf(name, sizeof name, "task/%d/children", (int)thread);
    if (read_proc(pid, name, text, sizeof text) <= 0)
        return;
    char *at = text;
    for (long child; (child = strtol(at, &at, 10)) > 0;)
        if (!spares || !spares((pid_t)child))
            tree_add(tree, (pid_t)child);
}

/* A child stands in the file of the thread that made it. */
static void add_children_of_all(struct tree *tree, pid_t pid, tree_spares spares)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    struct dirent *entry;
    while (tasks && (entry = readdir(tasks)))
        if (isdigit((unsigned char)entry->d_name[0]))
            add_children(tree, pid, atoi(entry->d_name), spares);
    if (tasks)
        closedir(tasks);
}

struct kin {
    pid_t pid, parent;
};

/* Without children files: all processes once, then whoever has a parent in the tree. */
static void scan_all(struct tree *tree, tree_spares spares)
{
    struct kin *all = NULL;
    size_t count = 0, room = 0;
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc && (entry = readdir(proc))) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (count == room) {
            struct kin *more = realloc(all, (room = room ? 2 * room : 256) * sizeof *all);
            if (!more)
                break;
            all = more;
        }
        all[count].pid = atoi(entry->d_name);
        if (state_of(all[count].pid, &all[count].parent))
            count++;
    }
    if (proc)
        closedir(proc);
    for (size_t i = 0; i < count; i++)
        if (all[i].parent == getpid() && (!spares || !spares(all[i].pid)))
            tree_add(tree, all[i].pid);
    for (size_t next = 0; next < tree->count; next++)
        for (size_t i = 0; i < count; i++)
            if (all[i].parent == tree->pids[next])
                tree_add(tree, all[i].pid);
    free(all);
}

static void scan(struct tree *tree, tree_spares spares)
{
    tree->count = 0;
    if (!(guest.capabilities & CAN_CHILDREN_FILE)) {
        scan_all(tree, spares);
        return;
    }
    add_children(tree, getpid(), getpid(), spares);
    for (size_t next = 0; next < tree->count; next++)
        add_children_of_all(tree, tree->pids[next], NULL);
}

void tree_signal(int number, tree_spares spares)
{
    struct tree tree = {0};
    scan(&tree, spares);
    for (size_t i = 0; i < tree.count; i++)
        kill(tree.pids[i], number);
    free(tree.pids);
}

static void breathe(void)
{
    struct timespec moment = {.tv_nsec = 200000};
    nanosleep(&moment, NULL);
}

static bool is_dead(char state)
{
    return state == 0 || state == 'Z' || state == 'X';
}

/*
 * Stops all until a scan finds none running. Killing at sight would never end a fork bomb: each death frees a slot that
 * is refilled at once. A stopped process keeps its slot and cannot fork.
 */
static uint32_t stop_all(struct tree *tree, tree_spares spares)
{
    uint64_t deadline = now_us() + PATIENCE_US;
    for (;;) {
        uint32_t alive = 0, running = 0;
        scan(tree, spares);
        for (size_t i = 0; i < tree->count; i++) {
            char state = state_of(tree->pids[i], NULL);
            if (is_dead(state))
                continue;
            alive++;
            if (state != 'T' && state != 't') {
                kill(tree->pids[i], SIGSTOP);
                running++;
            }
        }
        if (running == 0 || now_us() > deadline)
            return alive;
        sched_yield();
    }
}

/* Whether children other than the spared ones may remain. */
static bool reap(const struct tree *tree, tree_spares spares)
{
    if (!spares) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            continue;
        return pid == 0;
    }
    /* Waiting for any child would swallow the word of a spared one. */
    for (size_t i = 0; i < tree->count; i++)
        waitpid(tree->pids[i], NULL, WNOHANG);
    return tree->count > 0;
}

bool tree_end_by(tree_spares spares, uint64_t deadline, uint32_t *ended)
{
    struct tree tree = {0};
    *ended = 0;
    if (!spares && !reap(&tree, NULL))
        return true;
    bool left = true;
    /* Twice at least: what the first round kills is seen to be gone in the second. */
    for (unsigned round = 0; left && (round < 2 || now_us() < deadline); round++) {
        uint32_t alive = stop_all(&tree, spares);
        if (round == 0)
            *ended = alive;
        else
            breathe();
        for (size_t i = 0; i < tree.count; i++)
            kill(tree.pids[i], SIGKILL);
        left = reap(&tree, spares);
    }
    free(tree.pids);
    return !left;
}

uint32_t tree_end(tree_spares spares)
{
    uint32_t ended;
    tree_end_by(spares, NEVER, &ended);
    return ended;
}
