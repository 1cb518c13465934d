/* The file primitives: programs built into the guest, one forked child each. */
#ifndef APPLET_H
#define APPLET_H

#include "guest.h"
#include "sha256.h"

#define NOT_REGULAR 200
#define PATH_REFUSED 201
#define BAD_DIGEST 202
#define BAD_ARCHIVE 203

/* In a forked child with stdio in place: becomes the user, runs the applet and gives its exit code. */
int applet_run(char **argv);

/* One line on stderr, what was begun is removed, and the applet ends with `code`. */
_Noreturn void applet_fail(int code, const char *text);
/* The same with an errno, which is the code. */
_Noreturn void applet_fail_errno(const char *text);
/* What applet_fail() removes; NULL: nothing any more. */
void applet_on_failure(void (*undo)(void));

/* Arguments. */
bool has_flag(const char *flags, char flag);
mode_t parse_mode(const char *text);
int64_t parse_int(const char *text);

/* Stdout, buffered. */
void put_bytes(const void *bytes, size_t length);
void put_text(const char *text); /* with its NUL */
void put_flush(void);
void write_all(int fd, const void *bytes, size_t length);
/* At least one byte; 0 at the end. */
size_t read_some(int fd, void *bytes, size_t room);
/* A pipe that holds as much as the host sends ahead: the two ends wake each other less. Where it is refused, it works
   as it is. */
#define PIPE_BYTES 262144
void widen_pipe(int fd);

/* Stdin, buffered and hashed. */
struct source {
    struct sha256 hash;
    size_t start, end;
    uint8_t buffer[65536];
};
/* At least one byte, at most `*length`; NULL at the end of file. Not hashed until source_took(). */
const uint8_t *source_peek(struct source *source, size_t *length);
void source_took(struct source *source, size_t length);

void random_name(char name[24]);

int applet_stat(char **argv);
int applet_list(char **argv);
int applet_read(char **argv);
int applet_write(char **argv);
int applet_mkdir(char **argv);
int applet_rename(char **argv);
int applet_remove(char **argv);
int applet_chmod(char **argv);
int applet_pack(char **argv);
int applet_unpack(char **argv);
int applet_space(char **argv);

#endif
