#include "entry.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "applet.h"

char entry_type(mode_t mode)
{
    if (S_ISREG(mode))
        return 'f';
    if (S_ISDIR(mode))
        return 'd';
    return S_ISLNK(mode) ? 'l' : 'o';
}

int entry_head(const struct stat *status, char out[96])
{
    long long mtime = (long long)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec;
    return snprintf(out, 96, "%c %o %lld %lld %llu ", entry_type(status->st_mode), (unsigned)(status->st_mode & 07777),
                    (long long)status->st_size, mtime, (unsigned long long)status->st_nlink);
}

bool entry_put(const struct stat *status, int directory, const char *name, const char *path)
{
    char head[96], target[PATH_MAX];
    int length = entry_head(status, head);
    bool link = S_ISLNK(status->st_mode);
    if (link) {
        ssize_t got = readlinkat(directory, name, target, sizeof target - 1);
        if (got < 0)
            return false;
        target[got] = 0;
    }
    put_bytes(head, (size_t)length);
    put_text(path);
    if (link)
        put_text(target);
    return true;
}

/* Digits up to the one separator; false on anything else, and on more than the number can be. */
static bool take_number(const char **at, unsigned base, uint64_t max, uint64_t *value)
{
    *value = 0;
    if (**at == ' ')
        return false;
    for (; **at != ' '; (*at)++) {
        unsigned digit = (unsigned)(**at - '0');
        if (digit >= base || *value > (max - digit) / base)
            return false;
        *value = *value * base + digit;
    }
    (*at)++;
    return true;
}

bool entry_parse(const char *text, struct entry *entry)
{
    uint64_t mode, mtime, links;
    *entry = (struct entry){.type = text[0]};
    if (strcmp(text, "e") == 0)
        return true;
    if (!text[0] || !strchr("fdlo", text[0]) || text[1] != ' ')
        return false;
    text += 2;
    if (!take_number(&text, 8, 07777, &mode) || !take_number(&text, 10, INT64_MAX, &entry->size))
        return false;
    bool negative = *text == '-';
    text += negative;
    if (!take_number(&text, 10, INT64_MAX, &mtime) || !take_number(&text, 10, INT64_MAX, &links) || !*text)
        return false;
    entry->mode = (mode_t)(mode & 0777);
    entry->mtime_ns = negative ? -(int64_t)mtime : (int64_t)mtime;
    entry->path = text;
    return true;
}
