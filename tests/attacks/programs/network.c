/* N04, K16, R12: sockets, and what two boxes could meet at. */
#include "attack.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>

static void made(const char *what, int family, int kind, int protocol)
{
    int fd = socket(family, kind, protocol);
    call_limited(what, fd < 0 ? -1 : 0);
    if (fd >= 0) close(fd);
}

void network(int argc, char **argv)
{
    made("raw ICMP", AF_INET, SOCK_RAW, IPPROTO_ICMP);
    made("raw ICMPv6", AF_INET6, SOCK_RAW, IPPROTO_ICMPV6);
    made("raw IP", AF_INET, SOCK_RAW, IPPROTO_RAW);
    made("ping socket", AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
    made("packets", AF_PACKET, SOCK_RAW, 0x0300);
    made("XDP", 44, SOCK_RAW, 0);
    made("netfilter by netlink", AF_NETLINK, SOCK_RAW, 12);
    struct ifreq device = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (mild(argc, argv)) { /* the flags that it has */
        if (ioctl(fd, SIOCGIFFLAGS, &device) == 0) call_limited("set flags of lo", ioctl(fd, SIOCSIFFLAGS, &device));
    } else {
        device.ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING | IFF_PROMISC;
        call_limited("promiscuous lo", ioctl(fd, SIOCSIFFLAGS, &device));
    }
    char entry[68] = {AF_INET}; /* struct arpreq, of a device that is not there */
    strcpy(entry + 52, "none0");
    call("change ARP", ioctl(fd, SIOCSARP, entry));
    close(fd);
}

static int address(struct sockaddr_un *where, const char *name)
{
    memset(where, 0, sizeof *where);
    where->sun_family = AF_UNIX;
    return (int)offsetof(struct sockaddr_un, sun_path) + 1 + snprintf(where->sun_path + 1, 100, "%s", name);
}

static void hold(void)
{
    char byte;
    report();
    while (read(0, &byte, 1) > 0) {
    }
}

/* contact put NAME KEY | find NAME KEY: `put` stays until its standard input ends, then takes all away. */
void contact(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "station-attack";
    key_t key = argc > 2 ? (key_t)atol(argv[2]) : 0x53544E;
    struct sockaddr_un where;
    int length = address(&where, name), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc > 0 && strcmp(argv[0], "put") == 0) {
        int memory = shmget(key, 4096, IPC_CREAT | 0666), queue = msgget(key, IPC_CREAT | 0666);
        int shared = shm_open(name, O_RDWR | O_CREAT, 0666);
        told("abstract socket", bind(fd, (void *)&where, length) == 0 ? listen(fd, 5) : -1);
        told("System V memory", memory < 0 ? -1 : 0);
        told("System V queue", queue < 0 ? -1 : 0);
        told("POSIX memory", shared < 0 ? -1 : 0);
        hold();
        shmctl(memory, IPC_RMID, NULL);
        msgctl(queue, IPC_RMID, NULL);
        shm_unlink(name);
        return;
    }
    long found = connect(fd, (void *)&where, length);
    judged("abstract socket", found, found == 0);
    found = shmget(key, 0, 0);
    judged("System V memory", found, found >= 0);
    found = msgget(key, 0);
    judged("System V queue", found, found >= 0);
    found = shm_open(name, O_RDONLY, 0);
    judged("POSIX memory", found, found >= 0);
}

/* descriptors COUNT LIMIT: holds them until its standard input ends. */
void descriptors(int argc, char **argv)
{
    long count = argc > 0 ? atol(argv[0]) : 20000, limit = argc > 1 ? atol(argv[1]) : 4096, held = 0;
    while (held < count && socket(AF_INET, SOCK_STREAM, 0) >= 0) held++;
    judged("sockets at once", held, held > limit);
    hold();
}
