/* Serves the store in the directory of the second argument, on two threads. */
#include <fcntl.h>

#include "serving.h"

static void one(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, 1);
}

/* The number of descriptors, without the standard ones, that a program would inherit. */
static void inherited(ucall_call_t call, ucall_callback_tag_t tag) {
    int count = 0;
    (void)tag;
    for (int descriptor = 3; descriptor < 1024; ++descriptor) {
        int flags = fcntl(descriptor, F_GETFD);
        count += flags != -1 && !(flags & FD_CLOEXEC);
    }
    ucall_call_reply_i64(call, count);
}

static int check(bool holds, char const *what) {
    if (!holds) fprintf(stderr, "%s: %s\n", what, ucall_last_error());
    return holds ? 0 : 1;
}

/* Native procedures do not count, also if callbacks have taken their names. */
static int replaces_procedures(char const *path) {
    ucall_config_t config = config_of(0, NULL);
    config.max_procedures = 1;
    if (check(ucall_init(&config, &server), "init")) return 1;
    if (check(ucall_add_store(server, "kv", path, NULL), "kv")) return 1;
    if (check(ucall_add_procedure(server, "kv.get", one, NULL), "in place of a native one")) return 1;
    if (check(!ucall_add_procedure(server, "one", one, NULL), "past the limit")) return 1;
    if (check(ucall_remove_procedure(server, "kv.get"), "removed")) return 1;
    if (check(ucall_add_procedure(server, "kv.put", one, NULL), "in its place")) return 1;
    if (check(ucall_add_store(server, "kv", path, NULL), "kv again")) return 1;
    if (check(ucall_add_procedure(server, "one", one, NULL), "in place of kv.put")) return 1;
    ucall_free(server);
    return 0;
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    ucall_store_config_t store = {0};
    if (argc < 3) return 2;
    if (replaces_procedures(argv[2])) return 1;
    config.serving_threads = 2;
    store.max_value_bytes = 1000;
    if (check(ucall_init(&config, &server), "init")) return 1;
    if (check(ucall_add_procedure(server, "one", one, NULL), "one")) return 1;
    if (check(ucall_add_procedure(server, "inherited", inherited, NULL), "inherited")) return 1;
    store.size = 1;
    if (check(!ucall_add_store(server, "kv", argv[2], &store), "a size that is none")) return 1;
    store.size = sizeof store;
    if (check(ucall_add_store(server, "kv", argv[2], &store), "kv")) return 1;
    if (check(!ucall_add_store(NULL, "kv", argv[2], &store), "no server")) return 1;
    if (check(!ucall_add_store(server, NULL, argv[2], NULL), "no name")) return 1;
    if (check(!ucall_add_store(server, "kv", NULL, NULL), "no path")) return 1;
    if (check(!ucall_add_store(server, "kv", "/dev/null/kv", NULL), "wrong path")) return 1;
    if (!strstr(ucall_last_error(), "cannot open the store /dev/null/kv: ")) return 1;
    return serve_on_two_threads(&config);
}
