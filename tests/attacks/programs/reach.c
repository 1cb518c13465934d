/* N01, N02, N03, N05, K09, K12: who can be reached, and locks that two boxes could signal by. */
#include "attack.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Nothing is sent where there is a way out: that is harm enough, and no packet of a test leaves the machine. */
static bool alone(void)
{
    struct if_nameindex *found = if_nameindex();
    int others = 0;
    for (struct if_nameindex *one = found; one && one->if_index; one++) others += strcmp(one->if_name, "lo") != 0;
    if (found) if_freenameindex(found);
    judged("interfaces beside lo", others, others > 0);
    return others == 0;
}

static socklen_t parse(const char *text, int port, struct sockaddr_storage *where)
{
    struct sockaddr_in *four = (void *)where;
    struct sockaddr_in6 *six = (void *)where;
    memset(where, 0, sizeof *where);
    if (inet_aton(text, &four->sin_addr)) { /* decimal, octal and hexadecimal forms too */
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return sizeof *four;
    }
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((uint16_t)port);
    return inet_pton(AF_INET6, text, &six->sin6_addr) == 1 ? sizeof *six : 0;
}

/* 0: connected; else -1 and errno. A second is enough for what is on this machine. */
static long reach(const char *text, int port, int kind)
{
    struct sockaddr_storage where;
    socklen_t size = parse(text, port, &where);
    int fd = socket(where.ss_family, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (size == 0 || fd < 0) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    long result = connect(fd, (void *)&where, size);
    if (result == 0 && kind == SOCK_DGRAM) result = send(fd, "?", 1, 0) == 1 ? 0 : -1;
    if (result < 0 && errno == EINPROGRESS) {
        struct pollfd wait = {fd, POLLOUT, 0};
        int error = ETIMEDOUT;
        socklen_t length = sizeof error;
        if (poll(&wait, 1, 1000) == 1) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
        result = error ? -1 : 0;
        errno = error;
    }
    int kept = errno;
    close(fd);
    errno = kept;
    return result;
}

static bool unreachable(void) { return errno == ENETUNREACH || errno == EHOSTUNREACH || errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT; }

/* Whatever answers, were it with a refusal, is in reach; so is what never answers. */
static void reached(const char *text, int port, int kind)
{
    char what[80];
    long result = reach(text, port, kind);
    snprintf(what, sizeof what, "%s %s port %d", kind == SOCK_DGRAM ? "UDP" : "TCP", text, port);
    judged(what, result, result == 0 || !unreachable());
}

void metadata(int argc, char **argv)
{
    (void)argc, (void)argv;
    static const char *const forms[] = {
        "169.254.169.254", "2852039166", "0251.0376.0251.0376", "0xA9FEA9FE", "::ffff:169.254.169.254",
        "fd00:ec2::254", "169.254.170.2", "100.100.100.200",
    };
    if (!alone()) return;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) reached(forms[i], 80, SOCK_STREAM);
}

/* machine ADDRESS...: those of the host. */
void machine(int argc, char **argv)
{
    static const int ports[] = {22, 80, 2375, 2376, 4222, 5432, 6443};
    if (!alone()) return;
    for (int i = 0; i < argc; i++)
        for (size_t j = 0; j < sizeof ports / sizeof ports[0]; j++) reached(argv[i], ports[j], SOCK_STREAM);
}

/* loopback listen PORT: until its standard input ends; loopback PORT: by every name that it has. */
void loopback(int argc, char **argv)
{
    static const char *const names[] = {"127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"};
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    int off = 0;
    if (argc > 1 && strcmp(argv[0], "listen") == 0) {
        int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        any.sin6_port = htons((uint16_t)atoi(argv[1]));
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        told("listen", bind(fd, (void *)&any, sizeof any) == 0 ? listen(fd, 64) : -1);
        report();
        char byte;
        while (read(0, &byte, 1) > 0) {
        }
        return;
    }
    for (size_t i = 0; argc > 0 && i < sizeof names / sizeof names[0]; i++) {
        long result = reach(names[i], atoi(argv[0]), SOCK_STREAM);
        judged(names[i], result, result == 0);
    }
}

/* services PORT: sockets of engines and buses, what names them, and a port that somebody outside listens on. */
void services(int argc, char **argv)
{
    static const char *const sockets[] = {
        "/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock",
        "/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket",
        "/tmp/.X11-unix/X0",
    };
    static const char *const names[] = {
        "DOCKER_HOST", "STN_HOME", "NATS_URL", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR",
    };
    for (size_t i = 0; i < sizeof sockets / sizeof sockets[0]; i++) {
        struct stat found;
        long result = lstat(sockets[i], &found);
        judged(sockets[i], result, result == 0 && S_ISSOCK(found.st_mode));
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        errno = ENOENT;
        judged(names[i], getenv(names[i]) ? 0 : -1, getenv(names[i]) != NULL);
    }
    loopback(argc, argv);
}

void name_servers(int argc, char **argv)
{
    static const char *const servers[] = {"192.0.2.53", "198.51.100.53", "2001:db8::53", "169.254.169.253"};
    (void)argc, (void)argv;
    if (!alone()) return;
    for (size_t i = 0; i < sizeof servers / sizeof servers[0]; i++) {
        reached(servers[i], 53, SOCK_DGRAM);
        reached(servers[i], 53, SOCK_STREAM);
    }
}

static void locked(const char *path, bool hold)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    long result = fd < 0 ? -1 : flock(fd, LOCK_EX | LOCK_NB);
    if (hold) told(path, result);
    else judged(path, result, result < 0 && errno == EWOULDBLOCK);
    if (!hold && fd >= 0) close(fd);
}

/* locks hold | find: what one holds, another one must not see. */
void locks(int argc, char **argv)
{
    bool hold = argc > 0 && strcmp(argv[0], "hold") == 0;
    static const char *const shared[] = {"/bin/sh", "/usr/bin/env", "/usr/lib/os-release", "/etc/passwd", "/etc/hostname"};
    char path[512];
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) locked(shared[i], hold);
    DIR *own = opendir("/.stn");
    for (struct dirent *entry; own && (entry = readdir(own));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/.stn/%s", entry->d_name);
        locked(path, hold);
    }
    if (own) closedir(own);
    if (!hold) return;
    report();
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
}
