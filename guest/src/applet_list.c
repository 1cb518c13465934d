#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "applet.h"
#include "entry.h"
#include "path.h"
#include "walk.h"

/* A page has a bound in bytes too: ten thousand paths of 4 KiB are a burden to whoever reads them. */
#define PAGE_BYTES (1u << 20)

static struct walk walk;
static size_t told;

static void visit(int directory, const char *name, const char *path, const struct stat *status)
{
    entry_put(status, directory, name, path);
    told += strlen(path) + (S_ISLNK(status->st_mode) ? (size_t)status->st_size : 0);
    if (told >= PAGE_BYTES)
        walk.limit = walk.visited + 1; /* this one was the last */
}

int applet_list(char **argv)
{
    int directory = open_path(open_root(argv[0]), argv[1], O_RDONLY | O_DIRECTORY);
    walk = (struct walk){
        .recursive = has_flag(argv[2], 'r'), .limit = parse_int(argv[3]), .after = argv[4], .visit = visit};
    walk_tree(&walk, directory);
    if (walk.more)
        put_text("m");
    return 0;
}
