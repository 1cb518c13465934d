/* The command line of `stn-guest launch`. It comes from the station alone, so a mistake in it is a fault of ours. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

static long number(const char *text, char stop, char **end)
{
    char *tail;
    errno = 0;
    long value = strtol(text, &tail, 10);
    if (errno != 0 || tail == text || *tail != stop) {
        fprintf(stderr, "launch: not a number: %s\n", text);
        exit(LAUNCH_FAILED);
    }
    if (end != NULL)
        *end = tail + 1;
    return value;
}

static void add_to(const char **list, int *count, int most, const char *value)
{
    if (*count == most) {
        fprintf(stderr, "launch: more than %d of one option\n", most);
        exit(LAUNCH_FAILED);
    }
    list[(*count)++] = value;
}

static void add(const char **list, int *count, const char *value)
{
    add_to(list, count, LAUNCH_LIST_MAX, value);
}

static void users(struct launch *plan, const char *value)
{
    if (strcmp(value, "shared") == 0) {
        plan->users = USERS_SHARED;
        return;
    }
    char *gid;
    plan->users = USERS_SEPARATE;
    plan->guest_uid = (uid_t)number(value, ':', &gid);
    plan->guest_gid = (gid_t)number(gid, '\0', NULL);
}

static bool option(struct launch *plan, const char *name, const char *value)
{
    if (strcmp(name, "--cgroup") == 0)
        add(plan->cgroups, &plan->cgroup_count, value);
    else if (strcmp(name, "--rlimit") == 0)
        add(plan->rlimits, &plan->rlimit_count, value);
    else if (strcmp(name, "--bind") == 0)
        add(plan->binds, &plan->bind_count, value);
    else if (strcmp(name, "--tmpfs") == 0)
        add(plan->tmpfs, &plan->tmpfs_count, value);
    else if (strcmp(name, "--pin") == 0)
        add_to(plan->pins, &plan->pin_count, LAUNCH_GUARDS_MAX, value);
    else if (strcmp(name, "--protect") == 0)
        add_to(plan->protects, &plan->protect_count, LAUNCH_GUARDS_MAX, value);
    else if (strcmp(name, "--folder") == 0)
        plan->folder = value;
    else if (strcmp(name, "--stage") == 0)
        plan->stage = value;
    else if (strcmp(name, "--users") == 0)
        users(plan, value);
    else if (strcmp(name, "--max-userns") == 0)
        plan->max_userns = (int)number(value, '\0', NULL);
    else if (strcmp(name, "--info-fd") == 0)
        plan->info_fd = (int)number(value, '\0', NULL);
    else if (strcmp(name, "--last-fd") == 0)
        plan->last_fd = (int)number(value, '\0', NULL);
    else if (strcmp(name, "--become") == 0) {
        char *gid;
        plan->become = true;
        plan->uid = (uid_t)number(value, ':', &gid);
        plan->gid = (gid_t)number(gid, '\0', NULL);
    } else
        return false;
    return true;
}

bool launch_parse(struct launch *plan, int argc, char **argv)
{
    memset(plan, 0, sizeof *plan);
    plan->max_userns = -1;
    plan->info_fd = plan->last_fd = -1;
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--") == 0) {
            plan->argv = argv + i + 1;
            return plan->argv[0] != NULL;
        }
        if (i + 1 == argc || !option(plan, argv[i], argv[i + 1]))
            return false;
    }
    return false;
}
