/* What every part of the guest shares: the numbers of docs/guest-protocol.md and the facts found out at start. */
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GUEST_VERSION "0.1.0"
#define PROTOCOL_VERSION 1

enum host_frame {
    FRAME_HELLO = 0x01,
    FRAME_START = 0x02,
    FRAME_START_PART = 0x03,
    FRAME_STDIN = 0x04,
    FRAME_SIGNAL = 0x05,
    FRAME_CANCEL = 0x06,
    FRAME_ACK = 0x07,
    FRAME_CREDIT = 0x08,
    FRAME_FORGET = 0x09,
    FRAME_PING = 0x0A,
};

enum guest_frame {
    FRAME_HELLO_ACK = 0x81,
    FRAME_STARTED = 0x82,
    FRAME_OUTPUT = 0x83,
    FRAME_GAP = 0x84,
    FRAME_EXIT = 0x85,
    FRAME_STDIN_ACK = 0x86,
    FRAME_STDIN_CLOSED = 0x87,
    FRAME_PONG = 0x88,
    FRAME_ERROR = 0x89,
};

enum capability {
    CAN_PIDNS = 1 << 0,
    CAN_SUBREAPER = 1 << 1,
    CAN_PIDFD = 1 << 2,
    CAN_CHILDREN_FILE = 1 << 3,
    CAN_OPENAT2 = 1 << 4,
    CAN_SECCOMP = 1 << 5,
    CAN_SEPARATE_UID = 1 << 6,
    IS_FILTERED = 1 << 7,
    DOORS_SHUT = 1 << 8,
};

enum ending_kind {
    ENDING_EXITED = 1,
    ENDING_SIGNALLED = 2,
    ENDING_NO_DIRECTORY = 3,
    ENDING_NO_PROGRAM = 4,
    ENDING_NO_MEANS = 5,
    ENDING_LOST = 6,
};

enum ending_reason { REASON_NONE = 0, REASON_CANCELLED = 1, REASON_TIMED_OUT = 2, REASON_OUTPUT_LIMIT = 3 };
enum on_full { ON_FULL_BLOCK = 0, ON_FULL_DROP_OLDEST = 1, ON_FULL_KILL = 2 };

#define PAYLOAD_MAX 65536u
#define STDIN_WINDOW 262144u
#define PROCESSES_MAX 1024
#define OWNED_MAX 4

/* Set once by options_parse() and probe_run(), read-only afterwards. */
struct guest {
    int fd;           /* the listening socket, or -1 when stdin and stdout are the stream */
    const char *box;
    uid_t uid;
    gid_t gid;
    bool change_user; /* user code gets uid and gid, which differ from the guest's */
    long nproc;       /* 0: as inherited */
    bool want_seccomp;
    bool want_openat2;
    const char *owned[OWNED_MAX]; /* directories that are given to the user */
    int owned_count;
    const char *link; /* made before they are; NULL: none */
    const char *link_target;
    enum { CONTAIN_AUTO, CONTAIN_PIDNS, CONTAIN_SUBREAPER } containment;
    uint32_t capabilities;
    bool fresh_proc;     /* a PID namespace can have a /proc of its own */
    bool cover_settings; /* and /proc/sys in it can be made read-only */
    bool cover_keys;     /* and what tells of the kernel's key rings can be covered */
    bool shared_mounts;  /* mounts would propagate out of a new namespace unless made private */
};

extern struct guest guest;

bool options_parse(int argc, char **argv);
/* Gives the places of --own and --link to the user. False if one cannot be given: such a box is of no use. */
bool places_prepare(void);
/* False if the containment that was asked for by name cannot be had: it is never lowered silently. */
bool probe_run(void);

#endif
