/*
 * One static program with every attack on the kernel: `attack ID [ARGUMENT...]` prints one line of JSON,
 *     {"id": "K01", "tries": [{"what": "mount", "errno": "EPERM", "result": -1}], "harm": false}
 * It runs in boxes, where each must come to nothing, and on an unhardened target, where each must get somewhere.
 * On that target it does no harm: what would hurt the machine is asked for with arguments that no kernel obeys, and
 * an answer other than a refusal shows that the way is open.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void attack(int argc, char **argv);

/* A system call: harm unless it was refused (EPERM, EACCES) or is unknown (ENOSYS, ENOTSUP, ENOTTY). */
void call(const char *what, long result);
/* The same, and a full table of namespaces (ENOSPC) or no such family of sockets is a refusal too. */
void call_limited(const char *what, long result);
/* A file that must not open so; closed again, nothing is written. */
void opened(const char *path, int flags);
/* What is only told. */
void told(const char *what, long result);
/* What the attack itself has judged. */
void judged(const char *what, long result, bool harm);
/* Runs `body` in a child, as the answer may be a signal; that is a refusal. */
void in_child(const char *what, long (*body)(void));

/* Whether the first argument is `mild`: the target may be a machine that people use, and may turn out unhardened.
 * Nothing that would stay is then asked for, nor anything whose name alone is a threat. */
bool mild(int argc, char **argv);

/* Prints the line before the end, for attacks that go on. */
void report(void);

attack mounts, namespaces, processes, privileged, rings, clocks, keys, settings, devices, other_calls, readable;
attack metadata, machine, loopback, name_servers, locks, services, outside;
attack contact, network, zombies, crowd, descriptors, signals, threads, memory, daemonised, deaf;

/* Beyond what the libc's headers may know; the same on all machines. */
#define NR_OPEN_TREE 428
#define NR_MOVE_MOUNT 429
#define NR_FSOPEN 430
#define NR_FSPICK 433
#define NR_PIDFD_OPEN 434
#define NR_CLONE3 435
#define NR_PIDFD_GETFD 438
#define NR_MOUNT_SETATTR 442
#define NR_IO_URING_SETUP 425
#define NR_IO_URING_ENTER 426
#define NR_IO_URING_REGISTER 427
#define BAD_FLAGS 0x7FFFFFFF
