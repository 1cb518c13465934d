#include <fcntl.h>
#include <limits.h>

#include "applet.h"
#include "entry.h"
#include "path.h"
#include "walk.h"

static void visit(int directory, const char *name, const char *path, const struct stat *status)
{
    entry_put(status, directory, name, path);
}

int applet_list(char **argv)
{
    int directory = open_path(open_root(argv[0]), argv[1], O_RDONLY | O_DIRECTORY);
    struct walk walk = {
        .recursive = has_flag(argv[2], 'r'), .limit = parse_int(argv[3]), .after = argv[4], .visit = visit};
    walk_tree(&walk, directory);
    if (walk.more)
        put_text("m");
    return 0;
}
