#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest.h"
#include "loop.h"

struct guest guest = {.fd = INT_MIN, .want_seccomp = true, .want_openat2 = true};

static bool parse_number(const char *text, long *value)
{
    char *end;
    errno = 0;
    *value = strtol(text, &end, 10);
    return errno == 0 && *text && !*end && *value >= 0 && *value < INT_MAX;
}

static bool parse_containment(const char *text)
{
    static const char *const names[] = {"auto", "pidns", "subreaper"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            guest.containment = i;
            return true;
        }
    }
    return false;
}

static bool add_owned(const char *path)
{
    if (path[0] != '/' || guest.owned_count == OWNED_MAX)
        return false;
    guest.owned[guest.owned_count++] = path;
    return true;
}

/* PATH:TARGET; the word is ours to cut. */
static bool parse_link(char *text)
{
    char *colon = strchr(text, ':');
    if (text[0] != '/' || !colon || !colon[1] || guest.link)
        return false;
    *colon = '\0';
    guest.link = text;
    guest.link_target = colon + 1;
    return true;
}

static bool apply(int option, char *value)
{
    long number = 0;
    switch (option) {
    case 'f':
        if (strcmp(value, "-") == 0) {
            guest.fd = -1;
            return true;
        }
        guest.fd = parse_number(value, &number) ? (int)number : INT_MIN;
        return guest.fd >= 0;
    case 'b':
        guest.box = value;
        return true;
    case 'u':
        guest.uid = parse_number(value, &number) ? (uid_t)number : (uid_t)-1;
        return guest.uid != (uid_t)-1;
    case 'g':
        guest.gid = parse_number(value, &number) ? (gid_t)number : (gid_t)-1;
        return guest.gid != (gid_t)-1;
    case 'c':
        return parse_containment(value);
    case 'n':
        return parse_number(value, &guest.nproc);
    case 'o':
        return add_owned(value);
    case 'l':
        return parse_link(value);
    case 'O':
        guest.want_openat2 = false;
        return true;
    case 'S':
        guest.want_seccomp = false;
        return true;
    default:
        return false;
    }
}

bool options_parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"fd", required_argument, NULL, 'f'},          {"box", required_argument, NULL, 'b'},
        {"uid", required_argument, NULL, 'u'},         {"gid", required_argument, NULL, 'g'},
        {"containment", required_argument, NULL, 'c'}, {"nproc", required_argument, NULL, 'n'},
        {"own", required_argument, NULL, 'o'},         {"link", required_argument, NULL, 'l'},
        {"no-seccomp", no_argument, NULL, 'S'},        {"no-openat2", no_argument, NULL, 'O'},
        {NULL, 0, NULL, 0},
    };
    guest.uid = getuid();
    guest.gid = getgid();
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        if (!apply(option, optarg))
            return false;
    guest.change_user = guest.uid != getuid() || guest.gid != getgid();
    if (guest.fd == INT_MIN || !guest.box || optind != argc) {
        complain("serve needs --fd and --box, and takes no words", 0);
        return false;
    }
    return true;
}
